"""``live.json``: what a run is at now, for those who look on from another process.

It is written while the run lasts and removed at its end. Where it lies in a folder, its process
either lives, or was killed.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
from rich.console import RenderableType

from colocate.report.display import RunDisplay
from colocate.report.snapshot import RunSnapshot

logger = logging.getLogger(__name__)

NAME = "live.json"

_EVERY_S = 1.0
_SAME_S = 5.0
"""Two processes of one number do not begin so near to each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A run at an instant, and the process that it is.

    Attributes:
        what: What start-up is about; a simulation tells its progress so.
        snapshot: None before the first.
        host, process, process_began_s: Which process it is: a number alone may be another's by now.
        written_s: When this was written, by the machine's clock.
    """

    what: str = "starting"
    snapshot: RunSnapshot | None = None
    host: str
    process: int
    process_began_s: float
    written_s: float

    @property
    def is_alive(self) -> bool | None:
        """Whether the run goes on; None where another machine would have to be asked."""
        if self.host != socket.gethostname():
            return None
        try:
            process = psutil.Process(self.process)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            # Both are reckoned from when the machine was booted, of which it changes its mind.
            return bool(abs(process.create_time() - self.process_began_s) < _SAME_S)
        except psutil.Error:
            return False


class LiveFile:
    """A display that keeps the newest picture in a file, once a second at most."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._written = path.with_name(f".{path.name}.{os.getpid()}")
        self._what = "starting"
        self._began_s = psutil.Process().create_time()
        self._snapshot: RunSnapshot | None = None
        self._shown_s = 0.0
        self._is_broken = False

    def starting(self, what: str) -> None:
        self._what = what
        self._write()

    def update(self, snapshot: RunSnapshot) -> None:
        before, self._snapshot = self._snapshot, snapshot
        changed = before is None or before.phase is not snapshot.phase
        # A phase may last for minutes in which nothing else is told.
        if changed or time.monotonic() - self._shown_s >= _EVERY_S:
            self._write()

    def finished(self, ending: RenderableType) -> None:
        self.close()

    def close(self) -> None:
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self._is_broken:
            return
        self._shown_s = time.monotonic()
        live = Live(
            what=self._what,
            snapshot=self._snapshot,
            host=socket.gethostname(),
            process=os.getpid(),
            process_began_s=self._began_s,
            written_s=time.time(),
        )
        try:
            self._written.write_bytes(msgspec.json.encode(live))
            self._written.replace(self._path)
        except OSError as error:
            # Who looks on sees no more; the run itself goes on.
            self._is_broken = True
            logger.warning("%s cannot be written, and is given up: %s", self._path, error)


class Both:
    """Two displays that are told the same; the second one's place is behind the first."""

    def __init__(self, first: RunDisplay, second: RunDisplay) -> None:
        self._displays = (first, second)

    def starting(self, what: str) -> None:
        for display in self._displays:
            display.starting(what)

    def update(self, snapshot: RunSnapshot) -> None:
        for display in self._displays:
            display.update(snapshot)

    def finished(self, ending: RenderableType) -> None:
        for display in self._displays:
            display.finished(ending)

    def close(self) -> None:
        for display in self._displays:
            display.close()


def has_process(folder: Path) -> bool:
    """Whether the process of the folder's run is there; False where nobody can tell."""
    live = read_live(folder)
    return live is not None and bool(live.is_alive)


def read_live(folder: Path) -> Live | None:
    """What the run in a folder is at; None where it says nothing, or nothing that can be read."""
    try:
        return msgspec.json.decode((folder / NAME).read_bytes(), type=Live)
    except (OSError, msgspec.MsgspecError):
        return None
