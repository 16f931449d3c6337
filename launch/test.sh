#!/usr/bin/env bash
# Sets up .venv where needed, then checks and tests everything. With arguments: only pytest, with these.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
tools/setup.sh
export PATH="$root/.venv/bin:$PATH"
if (($#)); then
  exec pytest "$@"
fi
ruff check .
ruff format --check .
mypy
lint-imports
exec pytest
