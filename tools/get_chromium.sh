#!/usr/bin/env bash
# Sees to a Chromium for the tests that look at pages in a real browser: takes the one that is there,
# else installs Debian's where that can be done. Exit status 1, with the reason, where it cannot.
#
#   tools/get_chromium.sh
set -euo pipefail

say() { printf 'get_chromium: %s\n' "$*"; }
fail() { printf 'get_chromium: no Chromium: %s\n' "$*" >&2; exit 1; }

for name in "${COLOCATE_CHROMIUM:-}" chromium chromium-browser google-chrome google-chrome-stable; do
  if [[ -n $name ]] && command -v "$name" >/dev/null; then
    say "ready ($name)"
    exit 0
  fi
done
command -v apt-get >/dev/null || fail "none is installed, and there is no apt-get to install one with"
((EUID == 0)) || fail "none is installed, and only root can: apt-get install chromium"

log=$(mktemp)
trap 'rm -f "$log"' EXIT
# What goes over the network has a limit and may be ended at any time; unpacking may not, and needs none.
# Another apt-get is waited for, but not for ever.
apt() {
  DEBIAN_FRONTEND=noninteractive timeout --kill-after=10 "$1" apt-get -qq \
    -o DPkg::Lock::Timeout=120 -o Acquire::Retries=2 -o Acquire::http::Timeout=30 \
    -o Acquire::https::Timeout=30 "${@:2}" </dev/null >>"$log" 2>&1
}
say "installing Chromium from Debian's packages"
packages=(--no-install-recommends --yes install chromium fonts-dejavu-core)
apt 120 update || say "the lists of packages could not be brought up to date"
if ! { apt 300 --download-only "${packages[@]}" && apt 600 --no-download "${packages[@]}"; }; then
  tail -n 3 "$log" >&2
  fail "apt-get did not succeed within $SECONDS s; what it said last is above"
fi
command -v chromium >/dev/null || fail "Debian's package brought none"
say "ready after $SECONDS s"
