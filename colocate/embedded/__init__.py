"""The embedded default: a model, a tokenizer and a task that the project makes itself."""
