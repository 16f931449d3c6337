"""What SIGINT and SIGTERM do to a run: the first asks it to stop, the second ends it at once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable
from types import FrameType

_HANDLED = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Between enter and exit, in the main thread of a running event loop.

    The first signal calls ``on_stop`` on the loop. A further one exits the process with 128 plus
    its number (130, 143), without clean-up in this process: the run's reaper does that. A signal
    that comes within ``settle_s`` of the first is taken as the same: a terminal's Ctrl-C reaches
    the whole process group, and a parent may pass it on besides.

    Handlers are plain ones, not the loop's: the second signal must work where the loop hangs.

    Args:
        on_stop: Called once, with the signal.
        settle_s: Within so many seconds signals count as one.
    """

    def __init__(self, on_stop: Callable[[signal.Signals], None], *, settle_s: float = 0.5) -> None:
        self._on_stop = on_stop
        self._settle_s = settle_s
        self._first_s: float | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._before: dict[signal.Signals, object] = {}

    def __enter__(self) -> StopSignals:
        self._loop = asyncio.get_running_loop()
        for number in _HANDLED:
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        received = signal.Signals(number)
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._on_stop, received)
        elif now_s - self._first_s >= self._settle_s:
            os.write(2, f"second {received.name}: exiting at once\n".encode())
            os._exit(128 + number)
