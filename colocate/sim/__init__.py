"""The same core and driver under a virtual clock, with simulated ports."""
