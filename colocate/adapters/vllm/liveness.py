"""Calls to an engine end when the engine does, with an error that says how it ended."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, TypeVar

import psutil

from colocate.adapters.vllm.processes import EngineDiedError, death_of, is_alive

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_DEATH_CHECK_S = 0.5
"""Between two looks at whether the engine that owes an answer still lives."""

_LAST_BREATH_S = 10.0
"""From the end of a worker to the end of its core."""

P = ParamSpec("P")
T = TypeVar("T")


class MortalEngine:
    """Base of the adapter: an engine, or none, with the processes and the log of its life.

    Attributes:
        _processes: With which it was started.
        _log_start: The byte from which on the log is of this life.
    """

    def __init__(self, log_file: Path) -> None:
        self._engine: AsyncLLM | None = None
        self._processes: Sequence[psutil.Process] = ()
        self._log_file = log_file
        self._log_start = 0

    def _death_of(self, engine: AsyncLLM) -> EngineDiedError:
        return death_of(engine, self._processes, self._log_file, self._log_start)

    async def _is_dying(self, engine: AsyncLLM) -> bool:
        """Whether a process is gone; waits until vLLM has noticed, or goes on without it."""
        if all(is_alive(process) for process in self._processes):
            return bool(engine.errored)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _LAST_BREATH_S
        while not engine.errored and loop.time() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(_DEATH_CHECK_S / 5)
        return bool(engine.errored)


def fails_with_the_engine(
    method: Callable[Concatenate[Any, P], Awaitable[T]],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """A call to an engine that dies meanwhile, or is dead, ends with ``EngineDiedError``.

    For methods of a ``MortalEngine``. vLLM leaves a call of its core unanswered where the core dies
    under it, answers one whose worker died with "cancelled" before it knows why, and its own error
    on a dead engine points to a stack trace that nobody sees.
    """

    @functools.wraps(method)
    async def call(self: MortalEngine, /, *args: P.args, **kwargs: P.kwargs) -> T:
        engine = self._engine
        if engine is None:
            return await method(self, *args, **kwargs)
        from vllm.v1.engine.exceptions import EngineDeadError

        answer = asyncio.ensure_future(method(self, *args, **kwargs))
        try:
            while not answer.done():
                await asyncio.wait({answer}, timeout=_DEATH_CHECK_S)
                if engine.errored and not answer.done():
                    raise self._death_of(engine)
            return answer.result()
        except EngineDiedError:
            raise
        except EngineDeadError as error:
            raise self._death_of(engine) from error
        except Exception as error:
            if await self._is_dying(engine):
                raise self._death_of(engine) from error
            raise
        finally:
            if not answer.done():
                answer.cancel()
                await asyncio.wait({answer})

    return call
