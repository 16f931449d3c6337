"""What SIGINT, SIGTERM and SIGHUP do: the first asks a run to stop, the second ends it at once."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import termios
import time
from collections.abc import Callable
from types import FrameType

STOPPING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""What asks a run to stop. SIGHUP says that its terminal is gone."""


def handled() -> list[signal.Signals]:
    """Those of ``STOPPING`` that a run is to answer: SIGHUP not where it is ignored already.

    ``nohup`` asks for that. SIGINT is ignored too where a script started the run in the background,
    but who sends it to the run itself means it.
    """
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in STOPPING if not (ignored and number is signal.SIGHUP)]


def let_go_of_terminal() -> None:
    """Sends to nowhere what standard output and error would write to a terminal.

    Writing to one that is gone is an error, and must not keep a run from its last checkpoint.
    """
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        if os.isatty(descriptor) or _is_hung_up(descriptor):
            os.dup2(nowhere, descriptor)
    os.close(nowhere)


def _is_hung_up(descriptor: int) -> bool:
    """A terminal that is gone is no terminal any more: asked about its settings it says EIO."""
    try:
        termios.tcgetattr(descriptor)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)
    return False


class StopSignals:
    """Between enter and exit, in the main thread of a running event loop.

    The first signal calls ``on_stop`` on the loop. A further one exits the process with 128 plus
    its number (130, 143, 129), without clean-up in this process: the run's reaper does that. A
    signal that comes within ``settle_s`` of the first is taken as the same: a terminal's Ctrl-C
    reaches the whole process group, and a parent may pass it on besides. SIGHUP stays ignored where
    it was when the context is entered (``handled``).

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
        for number in handled():
            self._before[number] = signal.signal(number, self._handle)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
        self._before.clear()

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        received = signal.Signals(number)
        if received is signal.SIGHUP:
            let_go_of_terminal()
        now_s = time.monotonic()
        if self._first_s is None:
            self._first_s = now_s
            assert self._loop is not None
            self._loop.call_soon_threadsafe(self._on_stop, received)
        elif now_s - self._first_s >= self._settle_s:
            os.write(2, f"second {received.name}: exiting at once\n".encode())
            os._exit(128 + number)
