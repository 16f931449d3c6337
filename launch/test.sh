#!/usr/bin/env bash
# Sets up .venv where needed, then checks and tests everything. With arguments: only pytest, with these.
#
#   COLOCATE_TEST_MINUTES=60 launch/test.sh    begins no test after that time; says which it left out
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
if [[ -n ${COLOCATE_TEST_MINUTES:-} ]]; then
  export COLOCATE_TEST_UNTIL=$((EPOCHSECONDS + 60 * COLOCATE_TEST_MINUTES))
fi
tools/setup.sh
export PATH="$root/.venv/bin:$PATH"
if (($#)); then
  exec pytest "$@"
fi
ruff check .
ruff format --check .
mypy &
types=$!
lint-imports
wait "$types"

status=0
pytest --numprocesses 2 --dist worksteal --ignore tests/engine || status=$?
# Engines have the machine to themselves: their waits are chosen for that.
if ((EPOCHSECONDS < ${COLOCATE_TEST_UNTIL:-EPOCHSECONDS + 1})); then
  pytest tests/engine || status=$?
else
  echo "launch/test.sh: tests/engine was not begun: the time of COLOCATE_TEST_MINUTES is used up"
fi
exit "$status"
