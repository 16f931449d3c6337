#!/usr/bin/env bash
# Checks on this machine's GPU what CI, which has none, can only check on CPU. A short table comes last.
#
#   tools/gpu_check.sh                            everything that can run here; the rest says why not
#   tools/gpu_check.sh --only nvml,offload        some parts
#   tools/gpu_check.sh --device cpu               the script itself, where there is no GPU
#
# Takes the Python of .venv, else python3; COLOCATE_PYTHON names another. Exit status 0 where nothing
# FAILED (what was skipped has not failed), else 1.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${COLOCATE_PYTHON:-$root/.venv/bin/python}
command -v "$python" >/dev/null || python=python3
exec "$python" "$root/tools/gpu_check.py" "$@"
