"""The processes of a run that goes on in a process of its own, by what they are."""

from __future__ import annotations

from typing import Literal

import psutil

from colocate.supervision.mark import RUN_ID_VARIABLE

Kind = Literal["driver", "engine", "rank", "other"]


def processes_of(driver: psutil.Process) -> dict[Kind, list[psutil.Process]]:
    """All that is alive of a run, by kind; empty where its driver has ended.

    ``other``: the reaper, resource trackers, and what tools of an environment have started.
    """
    found: dict[Kind, list[psutil.Process]] = {"driver": [], "engine": [], "rank": [], "other": []}
    try:
        below = driver.children(recursive=True)
    except psutil.NoSuchProcess:
        return {}
    found["driver"].append(driver)
    for process in below:
        found[_kind(process)].append(process)
    return found


def run_id_of(driver: psutil.Process) -> str | None:
    """What the processes of a run are marked with; None where none is there yet, or any more."""
    try:
        for process in driver.children():
            if marked := process.environ().get(RUN_ID_VARIABLE):
                return str(marked)
    except psutil.NoSuchProcess:
        pass
    return None


def _kind(process: psutil.Process) -> Kind:
    try:
        command = " ".join(process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return "other"
    if "colocate.adapters.deepspeed.rank" in command:
        return "rank"
    return "engine" if "VLLM::" in command else "other"
