"""What ``tools/bench_swap.py`` is made of."""
