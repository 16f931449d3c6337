"""Ends the processes of a run by its mark, and removes what they left outside the run's folder."""

from __future__ import annotations

import multiprocessing.resource_tracker
import os
import shutil
import signal
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import psutil

from colocate.supervision.mark import Mark

SHARED_MEMORY = Path("/dev/shm")
_TERM_S = 2.0
_DEADLINE_S = 8.0
_POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class ProcessInfo:
    """A process as a person would look for it: ``psutil`` name and command line."""

    pid: int
    command: str

    def __str__(self) -> str:
        return f"{self.pid} ({self.command})"


@dataclass(frozen=True, slots=True)
class SweepReport:
    """What was left of a run. ``ended`` had to be killed; ``surviving`` could not be."""

    ended: tuple[ProcessInfo, ...] = ()
    surviving: tuple[ProcessInfo, ...] = ()


@dataclass(frozen=True, slots=True)
class Remains:
    """What a run keeps outside its folder.

    Attributes:
        mark: Of the run's processes.
        shm_prefix: The names of the run's files in ``/dev/shm`` begin so; contains the run's id.
        socket_dir: The folder of the run's sockets; its name contains the run's id.

    Raises:
        ValueError: a prefix or folder without the run's id, whose removal could hit others.
    """

    mark: Mark
    shm_prefix: str
    socket_dir: Path

    def __post_init__(self) -> None:
        for field, value in (("shm_prefix", self.shm_prefix), ("socket_dir", self.socket_dir.name)):
            if self.mark.run_id not in value:
                raise ValueError(f"{field} {value!r} must contain the run id {self.mark.run_id!r}")

    def remove_files(self) -> None:
        """Removes the run's shared memory and socket folder; a link is removed, not followed."""
        for path in SHARED_MEMORY.glob("*"):
            if path.name.startswith(self.shm_prefix):
                path.unlink(missing_ok=True)
        if self.socket_dir.is_symlink():
            self.socket_dir.unlink()
        elif self.socket_dir.exists():
            shutil.rmtree(self.socket_dir)


def living_processes(mark: Mark, spare: Collection[int]) -> list[psutil.Process]:
    """Processes with the mark that still run, without those to spare."""
    found = []
    for pid in psutil.pids():
        if pid in spare or not mark.is_on(pid):
            continue
        try:
            process = psutil.Process(pid)
            if process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def sweep(mark: Mark, *, spare: Collection[int], patience_s: float) -> SweepReport:
    """Ends every process with the mark: asks (SIGTERM), and two seconds later insists (SIGKILL).

    Repeats until none is left, since a process may start others while it ends. Trackers of
    ``multiprocessing`` come last: one ends by itself when the processes that it serves are gone,
    and unlinks the semaphores that they left in ``/dev/shm``. Takes at most 8 s after the
    patience. Blocks.

    Args:
        mark: Of the run.
        spare: Ids of processes to leave alone: the caller's own, at least.
        patience_s: How long processes may first take to end by themselves; those that do are not
            reported.
    """
    started_s = time.monotonic()
    asked_s: dict[psutil.Process, float] = {}
    described: dict[psutil.Process, ProcessInfo] = {}
    while living := living_processes(mark, spare):
        now_s = time.monotonic()
        if now_s - started_s > patience_s + _DEADLINE_S:
            break
        if now_s - started_s >= patience_s:
            for process in [p for p in living if not _is_tracker(p)] or living:
                if process not in asked_s:
                    described[process] = _describe(process)
                    asked_s[process] = now_s
                    _send(process, signal.SIGTERM)
                elif now_s - asked_s[process] >= _TERM_S:
                    _send(process, signal.SIGKILL)
        time.sleep(_POLL_S)
    surviving = [described.get(process) or _describe(process) for process in living]
    ended = [info for info in described.values() if info not in surviving]
    return SweepReport(ended=tuple(ended), surviving=tuple(surviving))


def own_helpers() -> set[int]:
    """This process, and the tracker that Python's multiprocessing started for it.

    The tracker ends with the process it serves, and unlinks what that one forgot. Its command
    line does not tell it from others in the moment between its fork and its exec: its number does.
    """
    tracker: int | None = multiprocessing.resource_tracker._resource_tracker._pid  # type: ignore[attr-defined]
    return {os.getpid()} | ({tracker} if tracker is not None else set())


def _is_tracker(process: psutil.Process) -> bool:
    """Of another process of the run, whose number nobody here knows."""
    try:
        return any("multiprocessing.resource_tracker" in part for part in process.cmdline())
    except (psutil.NoSuchProcess, psutil.AccessDenied):
        return False


def _describe(process: psutil.Process) -> ProcessInfo:
    try:
        command = " ".join(process.cmdline())[:200] or process.name()
    except psutil.NoSuchProcess:
        command = "ended meanwhile"
    return ProcessInfo(pid=process.pid, command=command.strip())


def _send(process: psutil.Process, number: signal.Signals) -> None:
    """psutil compares the start time first, so a reused id is never hit."""
    try:
        process.send_signal(number)
    except psutil.NoSuchProcess:
        return
