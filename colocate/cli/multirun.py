"""The jobs of a multirun: one child process after the other, none left behind.

A job's failure is told at once and again at the end, and does not stop the others. A signal is
passed on to the job that runs, and ends the multirun.
"""

from __future__ import annotations

import ctypes
import json
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, Self

import psutil

from colocate.supervision.signals import STOPPING, handled, let_go_of_terminal

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A job that did not end well."""

    label: str
    run_dir: Path
    reason: str

    def __str__(self) -> str:
        return f"{self.label} failed: {self.reason}; its folder: {self.run_dir}"


class Multirun:
    """Runs jobs and keeps count. As a context it holds the handlers of what stops a run.

    Args:
        num_jobs: How many jobs there are, for the messages.
        grace_s: How long what a job leaves behind may take to end by itself.
    """

    def __init__(self, *, num_jobs: int, grace_s: float) -> None:
        self._num_jobs = num_jobs
        self._grace_s = grace_s
        self._num_run = 0
        self._num_skipped = 0
        self._failures: list[Failure] = []
        self._child: subprocess.Popen[bytes] | None = None
        self._signal: int | None = None
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # Whatever a job leaves behind becomes this process's own child, and so can be found.
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        for number in handled():
            self._handlers[number] = signal.signal(number, self._pass_on)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        _prctl(_PR_SET_CHILD_SUBREAPER, 0)

    def skip(self, label: str, run_dir: Path) -> None:
        """Passes over a job that an earlier try has done."""
        self._leave_if_signalled()
        self._num_run += 1
        self._num_skipped += 1
        _say(f"[{self._num_run}/{self._num_jobs}] {label}: done before, in {run_dir}")

    def run(self, label: str, run_dir: Path, command: Sequence[str]) -> str | None:
        """Runs one job to its end; returns, when no process of it is left, why it failed.

        Raises:
            SystemExit: after a signal to this process, with 128 and the signal's number.
        """
        self._leave_if_signalled()
        self._num_run += 1
        _say(f"[{self._num_run}/{self._num_jobs}] {label}: {run_dir}")
        before = _descendants()
        # A session of its own keeps the terminal's Ctrl-C from reaching the job twice.
        self._child = subprocess.Popen(command, start_new_session=True)
        if self._signal is not None:
            self._child.send_signal(self._signal)
        status = self._child.wait()
        self._child = None
        num_leftovers = end_processes(_descendants() - before, self._grace_s)
        reason = _failure(status, run_dir)
        if reason is None and num_leftovers:
            reason = f"it left {num_leftovers} processes, which were ended"
        if reason is not None:
            failure = Failure(label=label, run_dir=run_dir, reason=reason)
            self._failures.append(failure)
            _say(str(failure))
        self._leave_if_signalled()
        return reason

    def close(self) -> int:
        """Says how it went; returns its exit status."""
        if not self._failures:
            before = f"; {self._num_skipped} had before" if self._num_skipped else ""
            _say(f"All {self._num_jobs} jobs ended well{before}.")
            return 0
        _say(f"{len(self._failures)} of {self._num_jobs} jobs failed:")
        for failure in self._failures:
            _say(f"  {failure}")
        return 1

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGHUP:
            let_go_of_terminal()
        self._signal = number
        if self._child is not None:
            self._child.send_signal(number)

    def _leave_if_signalled(self) -> None:
        if self._signal is None:
            return
        name = signal.Signals(self._signal).name
        _say(f"{name}: the multirun ends; {self._num_jobs - self._num_run} jobs were not started.")
        raise SystemExit(128 + self._signal)


def _descendants() -> set[psutil.Process]:
    return set(psutil.Process().children(recursive=True))


def end_processes(processes: Collection[psutil.Process], grace_s: float) -> int:
    """Waits for processes to end, then ends them; returns how many did not end by themselves."""
    _, alive = psutil.wait_procs(processes, timeout=grace_s)
    for process in alive:
        process.terminate()
    _, stubborn = psutil.wait_procs(alive, timeout=grace_s)
    for process in stubborn:
        process.kill()
    psutil.wait_procs(stubborn, timeout=grace_s)
    return len(alive)


def stop_with_parent() -> None:
    """For a job's process: asks the kernel for SIGTERM when the multirun's process dies."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")


def _failure(status: int, run_dir: Path) -> str | None:
    if status == 0:
        return None
    if status < 0:
        how = f"ended by {signal.Signals(-status).name}"
    elif status in (128 + number for number in STOPPING):
        how = f"stopped by {signal.Signals(status - 128).name}"
    else:
        how = f"exit status {status}"
    error = _summary_error(run_dir)
    return f"{how} ({error})" if error else how


def _summary_error(run_dir: Path) -> str | None:
    """What the job itself wrote about its failure, where it came to that."""
    try:
        error = json.loads((run_dir / "summary.json").read_text(encoding="utf-8")).get("error")
    except (OSError, ValueError):
        return None
    return None if error is None else str(error)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
