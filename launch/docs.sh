#!/usr/bin/env bash
# Builds the documentation into site/. A warning is an error.
#
#   launch/docs.sh                            makes .venv-docs where needed, then builds
#   launch/docs.sh --mermaid mermaid.min.js   puts this file into the site, so that the state
#                                             diagrams are drawn without a network, too
#
# The small environment holds the extra `docs` of pyproject.toml and nothing else: the pages of the
# Python interfaces are read from the source, which is not imported.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv-docs
mermaid=
case ${1:-} in
  "") ;;
  --mermaid)
    [[ -f ${2:-} ]] || { echo "launch/docs.sh: --mermaid takes a file that exists" >&2; exit 2; }
    mermaid=$(realpath "$2")
    ;;
  *) echo "launch/docs.sh: takes only --mermaid FILE; given: $1" >&2; exit 2 ;;
esac
cd "$root"

python=
for candidate in ${COLOCATE_PYTHON:-.venv/bin/python python3.11 python3.12 python3.13 python3}; do
  if "$candidate" -c 'import tomllib' 2>/dev/null; then
    python=$candidate
    break
  fi
done
[[ -n $python ]] || { echo "launch/docs.sh: no Python 3.11 or newer found" >&2; exit 1; }
mapfile -t requirements < <("$python" -c '
import tomllib
with open("pyproject.toml", "rb") as file:
    print(*tomllib.load(file)["project"]["optional-dependencies"]["docs"], sep="\n")')
stamp=$venv/requirements
if [[ ! -e $stamp || $(<"$stamp") != "${requirements[*]}" ]]; then
  rm -rf "$venv"
  "$python" -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet "${requirements[@]}"
  echo "${requirements[*]}" >"$stamp"
fi

config=mkdocs.yml
[[ -z $mermaid ]] || config=mkdocs.mermaid.yml
# The theme's authors announce another generator on the terminal, at every build.
NO_MKDOCS_2_WARNING=1 "$venv/bin/python" -m mkdocs build --strict --config-file "$config"
if [[ -n $mermaid ]]; then
  cp "$mermaid" site/mermaid.min.js
fi
echo "Open $root/site/index.html; for its search: $python -m http.server --directory site"
