"""Trackers that a run reports its metrics to, each behind the port ``RunLogger``."""
