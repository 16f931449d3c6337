"""A virtual clock for asyncio: time passes only when nothing is left to do.

An ordinary event loop with another selector: where the real one would sleep until the next
timer, this one moves the clock there. A program that would wait for ever is told so.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class VirtualDeadlock(Exception):
    """Every task waits, and no timer will ever wake one."""


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if ready:
            return ready
        if timeout is None:
            raise VirtualDeadlock("every task waits, and no timer is set")
        self.now_s += max(0.0, timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Threads and sockets do not mix with it: they answer in real time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now_s

    def stand_still(self, seconds: float) -> None:
        """The process is stopped for so long, as by SIGSTOP: time passes, and nothing is done."""
        self._jumping.now_s += seconds


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Like ``asyncio.run``, on a virtual clock that starts at 0."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
