"""Whether a process that is somebody else's to end still runs."""

from __future__ import annotations

from collections.abc import Iterable

import psutil


def runs(process: psutil.Process) -> bool:
    """Neither gone, which it may be between two questions, nor a zombie."""
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def running(processes: Iterable[psutil.Process], within_s: float) -> list[psutil.Process]:
    """Those that still run when so many seconds are over, or none of them does."""
    _, alive = psutil.wait_procs(list(processes), timeout=within_s)
    return [process for process in alive if runs(process)]
