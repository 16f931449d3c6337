"""vLLM as the generating engine. ``engine.VllmInference`` is the adapter; the rest serves it."""
