"""``colocate chat``: a run's trained model, to talk to and to watch in the run's environment."""
