"""The pure core: decisions only. Standard library, no I/O, no clock of its own."""
