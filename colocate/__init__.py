"""Reinforcement learning of LLM agents on one set of GPUs, time-multiplexed by one scheduler.

Importing this package imports nothing heavy: the pure core is usable without torch or vLLM.
"""

__version__ = "0.1.0"
