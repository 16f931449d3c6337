"""Swap policies on equal workloads in the simulator, and how they are compared."""
