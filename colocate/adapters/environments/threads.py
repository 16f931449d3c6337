"""Environments that block, in threads: the event loop goes on while one resets or steps.

reset, step --> a daemon thread that is idle, or a new one --> back on the loop
close       --> at once; or, where a step was given up and still runs, as soon as that has ended
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar, cast

from colocate.ports import BlockingEnvironment, Prompt, StepOutcome

T = TypeVar("T")
_Settle = Callable[[object, Exception | None], None]


class Threads:
    """Runs calls in daemon threads, which are kept for the next: a call that hangs for ever holds
    up neither the event loop, nor the pool that the rest of the process shares, nor its end."""

    def __init__(self) -> None:
        self._idle: list[queue.SimpleQueue[tuple[Callable[[], object], _Settle]]] = []

    def start(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Begins a call. What it raises is the future's; an exit it asks for, a RuntimeError.

        Cancelling the future gives up its result; the call itself goes on.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        work = self._idle.pop() if self._idle else _new_thread()

        def on_loop(value: object, error: Exception | None) -> None:
            self._idle.append(work)
            if future.done():
                return
            if error is None:
                future.set_result(cast(T, value))
            else:
                future.set_exception(error)
                future.exception()  # Its caller may be gone; then nobody else asks for it.

        def settle(value: object, error: Exception | None) -> None:
            loop.call_soon_threadsafe(on_loop, value, error)

        work.put((function, settle))
        return future


class ThreadedEnvironment:
    """One episode of a blocking environment, which is made, too, in a thread.

    Its calls never overlap, and each may come from another thread than the one before.
    """

    def __init__(
        self, make: Callable[[], BlockingEnvironment], threads: Threads, *, is_replayable: bool
    ) -> None:
        self._make = make
        self._threads = threads
        self.is_replayable = is_replayable
        self._inner: BlockingEnvironment | None = None
        self._last: asyncio.Future[Any] | None = None

    async def reset(self, prompt: Prompt, seed: int) -> str:
        def make_and_reset() -> str:
            self._inner = self._make()
            return self._inner.reset(prompt, seed)

        return await self._run(make_and_reset)

    async def step(self, action: str) -> StepOutcome:
        inner = self._inner
        assert inner is not None, "step comes after reset"
        return await self._run(lambda: inner.step(action))

    async def close(self) -> None:
        def close() -> None:
            if self._inner is not None:
                self._inner.close()

        if self._last is None or self._last.done():
            await self._run(close)
        else:
            self._last.add_done_callback(lambda _: self._threads.start(close))

    async def _run(self, function: Callable[[], T]) -> T:
        self._last = self._threads.start(function)
        # A caller that gives up must not make a call look ended that still runs.
        return await asyncio.shield(self._last)


def _new_thread() -> queue.SimpleQueue[tuple[Callable[[], object], _Settle]]:
    work: queue.SimpleQueue[tuple[Callable[[], object], _Settle]] = queue.SimpleQueue()
    threading.Thread(target=_serve, args=(work,), name="environment", daemon=True).start()
    return work


def _serve(work: queue.SimpleQueue[tuple[Callable[[], object], _Settle]]) -> None:
    while True:
        function, settle = work.get()
        value: object = None
        error: Exception | None = None
        try:
            value = function()
        except StopIteration as raised:  # No future takes it.
            error = RuntimeError(f"StopIteration: {raised}")
        except Exception as raised:
            error = raised
        except BaseException as raised:
            error = RuntimeError(f"{type(raised).__name__}: {raised}")
        try:
            settle(value, error)
        except RuntimeError:  # The loop has been closed.
            return
