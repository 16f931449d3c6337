"""Rewards as functions of a finished trajectory: calling anybody's, and verifiers ready to use."""
