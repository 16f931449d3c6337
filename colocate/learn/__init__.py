"""What a training step computes: advantages, batches, log-probabilities, losses. Torch only."""
