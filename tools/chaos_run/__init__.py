"""Parts of ``tools/chaos.py``."""
