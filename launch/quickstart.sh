#!/usr/bin/env bash
# Sets up .venv where needed, then trains the embedded default. Takes overrides, as: steps=20 seed=1
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
"$root/tools/setup.sh"
exec "$root/.venv/bin/colocate" train +experiment=quickstart "$@"
