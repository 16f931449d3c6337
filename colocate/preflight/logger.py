"""Rules of trackers: each is installed, named once, and can be reached without asking anyone."""

from __future__ import annotations

import importlib.util
import netrc
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from colocate.preflight.table import rule
from colocate.problems import Problem

WANDB_URL = "https://api.wandb.ai"


@rule("logger.to")
def _trackers_are_installed(names: Sequence[str]) -> Iterator[Problem]:
    for name in dict.fromkeys(names):
        if not is_installed(name):
            yield Problem(
                field="logger.to",
                value=list(names),
                rule=f"must name installed packages; {name} is not",
                remedy=f"pip install 'colocate[{name}]', or leave {name} out",
            )
    if len(set(names)) < len(names):
        yield Problem(
            field="logger.to",
            value=list(names),
            rule="must name each tracker once",
            remedy=f"set logger.to={list(dict.fromkeys(names))}",
        )


@rule("logger.to", "logger.wandb.mode")
def _wandb_has_a_key(names: Sequence[str], mode: str) -> Iterator[Problem]:
    """Without one the package would ask on the terminal, in the middle of the run."""
    if "wandb" not in names or mode != "online" or not is_installed("wandb"):
        return
    host = urlsplit(os.environ.get("WANDB_BASE_URL", WANDB_URL)).hostname or ""
    if os.environ.get("WANDB_API_KEY") or _is_in_netrc(host):
        return
    yield Problem(
        field="logger.wandb.mode",
        value=mode,
        rule=f"needs an API key for {host}: WANDB_API_KEY is not set, and ~/.netrc has none",
        remedy="run `wandb login`, or set logger.wandb.mode=offline",
    )


def is_installed(package: str) -> bool:
    """A folder of that name, as runs leave one, is no package."""
    spec = importlib.util.find_spec(package)
    return spec is not None and spec.origin is not None


def _is_in_netrc(host: str) -> bool:
    path = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    try:
        return netrc.netrc(path).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False
