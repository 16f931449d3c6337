"""All trackers of a run: none of them can hold it up, and none can end it.

    log --> [queue] --> a thread of each tracker --> its package --> disk, or network

Each is opened, fed and closed in a thread of its own. What one raises is counted, and warned of
once; the others, and the run, go on.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from colocate.ports import RunLogger

logger = logging.getLogger(__name__)

CLOSE_PATIENCE_S = 60.0
"""For what a tracker has yet to send when the run is over."""
MAX_WAITING = 10_000
"""Entries that one may be behind by: steps, swaps, evaluations."""

MakeLogger = Callable[[], RunLogger]
_Entry = tuple[int, Mapping[str, float]]


@dataclass(slots=True)
class _Tally:
    logged: int = 0
    failed: int = 0
    error: str | None = None


class LoggerGroup:
    """Feeds each tracker. Every method returns at once, but ``close``, and raises nothing."""

    def __init__(self, makers: Mapping[str, MakeLogger]) -> None:
        self._feeders = [_Feeder(name, make) for name, make in makers.items()]

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """``values`` by the names of ``colocate.loggers.names``."""
        for feeder in self._feeders:
            feeder.put((step, dict(values)))

    def close(self, *, succeeded: bool, patience_s: float = CLOSE_PATIENCE_S) -> None:
        """Waits until everything is with the trackers, or until they have had their time."""
        for feeder in self._feeders:
            feeder.finish(succeeded)
        for feeder in self._feeders:
            feeder.wait(patience_s)

    @property
    def warnings(self) -> tuple[str, ...]:
        """One of each tracker that has failed."""
        return tuple(text for feeder in self._feeders if (text := feeder.warning))

    def summary(self) -> dict[str, dict[str, Any]]:
        """Of each tracker: entries logged, failures, and what the first of these was."""
        return {feeder.name: feeder.summary() for feeder in self._feeders}


class _Feeder:
    """One tracker's thread. A daemon: one that hangs does not keep the process alive."""

    def __init__(self, name: str, make: MakeLogger) -> None:
        self.name = name
        self._make = make
        self._queue: queue.Queue[_Entry | bool] = queue.Queue()
        self._tally = _Tally()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"logger-{name}", daemon=True)
        self._thread.start()

    def put(self, entry: _Entry) -> None:
        if self._queue.qsize() >= MAX_WAITING:
            self._count_failure(f"it is {MAX_WAITING} entries behind; further ones are left out")
        else:
            self._queue.put(entry)

    def finish(self, succeeded: bool) -> None:
        self._queue.put(succeeded)

    def wait(self, patience_s: float) -> None:
        self._thread.join(patience_s)
        if self._thread.is_alive():
            self._count_failure(f"it did not finish within {patience_s:g} s of the run's end")

    @property
    def warning(self) -> str | None:
        with self._lock:
            if self._tally.error is None:
                return None
            return f"the logger {self.name} has failed, and the run goes on: {self._tally.error}"

    def summary(self) -> dict[str, Any]:
        with self._lock:
            tally = self._tally
            return {"logged": tally.logged, "failed": tally.failed, "error": tally.error}

    def _run(self) -> None:
        target: RunLogger | None = None
        try:
            target = self._make()
        except BaseException as error:  # some packages end the process where they mean an error
            self._count_failure(_in_words(error))
        while True:
            entry = self._queue.get()
            if isinstance(entry, bool):
                succeeded = entry
                break
            if target is None:
                self._count_failure("it was not opened")
                continue
            try:
                target.log(*entry)
            except BaseException as error:
                self._count_failure(_in_words(error))
            else:
                with self._lock:
                    self._tally.logged += 1
        if target is not None:
            try:
                target.close(succeeded=succeeded)
            except BaseException as error:
                self._count_failure(_in_words(error))

    def _count_failure(self, error: str) -> None:
        with self._lock:
            self._tally.failed += 1
            is_first = self._tally.error is None
            if is_first:
                self._tally.error = error
        if is_first:
            logger.warning("the logger %s has failed: %s", self.name, error)


def _in_words(error: BaseException) -> str:
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text}"
