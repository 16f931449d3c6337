#!/usr/bin/env bash
# Makes .venv beside pyproject.toml with all that a run and the tests need.
#
#   tools/setup.sh                        chooses by itself: GPU where nvidia-smi finds one
#   COLOCATE_DEVICE=cpu tools/setup.sh    or =gpu: chooses that
#
# A second call finds its stamp and returns at once, without a network.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
stamp=$venv/colocate-setup
uv_version=0.13.9

say() { printf 'setup: %s\n' "$*"; }
fail() { printf 'setup: %s\n' "$*" >&2; exit 1; }

choose_device() {
  case ${COLOCATE_DEVICE:-auto} in
    cpu | gpu) echo "$COLOCATE_DEVICE" ;;
    cuda) echo gpu ;;
    auto) if nvidia-smi -L 2>/dev/null | grep -q '^GPU '; then echo gpu; else echo cpu; fi ;;
    *) fail "COLOCATE_DEVICE must be auto, cpu or gpu; it is '$COLOCATE_DEVICE'" ;;
  esac
}

# The CPU build of torch is not made for every Python: the one this project is tested on comes first.
find_python() {
  local candidate
  for candidate in ${COLOCATE_PYTHON:-python3.11 python3.12 python3.13 python3}; do
    if "$candidate" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  fail "no Python 3.11, 3.12 or 3.13 found; install one, or name it in COLOCATE_PYTHON"
}

# What the environment is made from: when this changes, it is made anew or brought up to date.
fingerprint() {
  echo "$device $("$venv/bin/python" -V 2>/dev/null)"
  (cd "$root" && sha256sum pyproject.toml tools/setup.sh tools/cpu-overrides.txt)
  (cd "$venv" && pwd)
}

make_venv() {
  local python
  if [[ -e $venv ]] && ! { "$venv/bin/python" -m pip --version >/dev/null 2>&1 && same_device; }; then
    say "the old .venv is for another device or no longer works; making it anew"
    rm -rf "$venv"
  fi
  if [[ ! -e $venv ]]; then
    python=$(find_python)
    say "making .venv with $("$python" -V)"
    "$python" -m venv "$venv" || fail "'$python -m venv' failed; on Debian: apt-get install python3-venv"
  fi
}

same_device() {
  [[ ! -e $stamp || $(head -n 1 "$stamp") == "$device "* ]]
}

install() {
  local arguments=(--python "$venv/bin/python" --index-strategy unsafe-best-match --compile-bytecode)
  if [[ $device == cpu ]]; then
    arguments+=(--override "$root/tools/cpu-overrides.txt")
    "$venv/bin/uv" pip uninstall --quiet --python "$venv/bin/python" torchvision torchaudio torchcodec
  fi
  "$venv/bin/uv" pip install --quiet "${arguments[@]}" --editable "$root[$device,dev]"
}

device=$(choose_device)
if [[ -e $stamp && $(<"$stamp") == "$(fingerprint)" ]]; then
  say "ready ($device, .venv is up to date)"
  exit 0
fi

make_venv
say "installing for $device: vLLM, DeepSpeed, torch and tools, some 2 GB when nothing is cached"
say "this takes some minutes, and shows nothing until it is done"
"$venv/bin/python" -m pip install -qq "uv==$uv_version"
eval "$("$venv/bin/python" "$root/tools/uv_environment.py")"
if ! install; then
  if [[ $device == cpu ]]; then
    say "where torch's '+cpu' build was not found: name PyTorch's index of CPU wheels in PIP_EXTRA_INDEX_URL" >&2
  fi
  fail "installing failed after $SECONDS s; the reason is above"
fi
fingerprint >"$stamp"
say "ready after $SECONDS s ($device, $("$venv/bin/python" -V)); '.venv/bin/colocate doctor' shows the machine"
