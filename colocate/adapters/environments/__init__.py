"""Environments by import path, and the latency that may be put on top of their steps."""
