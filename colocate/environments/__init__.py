"""Environments that ship with colocate, and their tasks: see ``docs/environments.md``."""
