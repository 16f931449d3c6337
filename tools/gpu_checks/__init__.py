"""The parts of ``tools/gpu_check.sh``: one module each, with a function ``run``."""
