"""The console script ``colocate``."""
