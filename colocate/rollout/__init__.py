"""Trajectories as tasks: prompts, content, the gate, and the loop of turns."""
