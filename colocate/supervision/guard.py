"""Holds everything that a run starts, and sees to it that nothing of it stays."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

from colocate.supervision.mark import Mark, MarkedProcess
from colocate.supervision.reaper import QUIT, READY
from colocate.supervision.sweep import Remains, SweepReport, own_helpers, sweep

logger = logging.getLogger(__name__)

_PATIENCE_S = 3.0
_REAPER_EXIT_S = 10.0


class RunGuard:
    """From ``start`` to ``close``, every process that this one starts belongs to the run.

    Whatever ends this process in between, SIGKILL included, the run's processes are gone within
    ten seconds, with their shared memory and sockets: a reaper process watches for it. Use it
    as a context manager, plain or ``async``, around everything that starts processes.

    Args:
        run_id: Unique; 8 to 64 letters, digits, ``_``, ``.`` or ``-``.
        shm_prefix: How the run's files in ``/dev/shm`` begin; contains the run id.
        socket_dir: Folder of the run's sockets; its name contains the run id. Removed at the end.
        log_path: Where the reaper's own messages go; ``None``: standard error.

    Raises:
        ValueError: names that do not contain the run id.
    """

    def __init__(
        self, run_id: str, shm_prefix: str, socket_dir: Path, *, log_path: Path | None = None
    ) -> None:
        self._remains = Remains(Mark(run_id), shm_prefix, socket_dir.absolute())
        self._log_path = log_path
        self._marked: MarkedProcess | None = None
        self._reaper: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Marks this process and starts the reaper; returns when the reaper watches.

        Raises:
            RuntimeError: the reaper does not start, or marks are not inherited on this machine.
        """
        self._marked = MarkedProcess(self._remains.mark)
        try:
            self._reaper = self._start_reaper()
        except BaseException:
            self._marked.restore()
            self._marked = None
            raise

    async def aclose(self) -> SweepReport:
        """``close``, off the event loop."""
        return await asyncio.to_thread(self.close)

    def close(self) -> SweepReport:
        """Ends what is left of the run, removes its files, then ends the reaper.

        Processes that are just ending get a few seconds. Safe to call twice.

        Returns:
            What was left over and had to be killed: empty after an orderly end.
        """
        if self._reaper is None or self._marked is None:
            return SweepReport()
        reaper, self._reaper = self._reaper, None
        spare = own_helpers() | {reaper.pid}
        report = sweep(self._remains.mark, spare=spare, patience_s=_PATIENCE_S)
        self._remains.remove_files()
        _dismiss(reaper)
        self._marked.restore()
        for process in report.ended:
            logger.warning("process %s outlived its part of the run and was ended", process)
        for process in report.surviving:
            logger.error("process %s of the run could not be ended", process)
        return report

    def __enter__(self) -> RunGuard:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> RunGuard:
        self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def _start_reaper(self) -> subprocess.Popen[str]:
        command = [
            sys.executable,
            "-m",
            "colocate.supervision.reaper",
            f"--run-id={self._remains.mark.run_id}",
            f"--driver-pid={os.getpid()}",
            f"--shm-prefix={self._remains.shm_prefix}",
            f"--socket-dir={self._remains.socket_dir}",
        ]
        log: IO[bytes] | None = None if self._log_path is None else self._log_path.open("ab")
        try:
            reaper = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
            )
        finally:
            if log is not None:
                log.close()
        assert reaper.stdout is not None
        answer = reaper.stdout.readline().strip()
        if answer != READY:
            reaper.kill()
            reaper.communicate()
            where = self._log_path or "standard error"
            raise RuntimeError(
                f"the run's reaper did not start ({answer or 'no answer'}; see {where}); without "
                "it a killed run would leave its processes behind"
            )
        return reaper


def _dismiss(reaper: subprocess.Popen[str]) -> None:
    try:
        reaper.communicate(QUIT.decode(), timeout=_REAPER_EXIT_S)
    except subprocess.TimeoutExpired:
        reaper.kill()
        reaper.communicate()
        raise RuntimeError("the run's reaper did not end when told to, and was killed") from None
    if reaper.returncode != 0:
        logger.warning("the run's reaper had ended early, with status %d", reaper.returncode)
