"""Runs programs that a model wrote, and contains them: see ``run`` and ``docs/security.md``."""
