"""Breaks one call of a port, simulated or real, in the ways in which such calls break.

A port's method is replaced on the object, so that the driver calls the broken one.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from typing import Any

Breakage = Callable[..., Any]


def break_call(
    port: Any, method: str, breakage: Breakage, *, when: Callable[..., bool] = lambda *_, **__: True
) -> list[tuple[Any, ...]]:
    """From now on ``port.method`` breaks where ``when`` says so of its arguments.

    ``breakage`` is awaited with the intact method and the arguments. Returns the list of the
    broken calls, which grows.
    """
    intact = getattr(port, method)
    broken: list[tuple[Any, ...]] = []

    async def call(*args: Any, **kwargs: Any) -> Any:
        if not when(*args, **kwargs):
            return await intact(*args, **kwargs)
        broken.append(args)
        return await breakage(intact, *args, **kwargs)

    setattr(port, method, call)
    return broken


async def fails(intact: Breakage, *args: Any, **kwargs: Any) -> Any:
    raise OSError("broken on purpose")


async def fails_half_way(intact: Breakage, *args: Any, **kwargs: Any) -> Any:
    """It has done its work, or part of it, and nobody is told."""
    await intact(*args, **kwargs)
    raise OSError("broken on purpose")


async def hangs(intact: Breakage, *args: Any, **kwargs: Any) -> Any:
    await asyncio.Event().wait()


def lies(answer: Any = None) -> Breakage:
    """Returns ``answer``, as if it had been done."""

    async def lie(intact: Breakage, *args: Any, **kwargs: Any) -> Any:
        return answer(*args) if callable(answer) else answer

    return lie


def signals(process_ids: Callable[[], Sequence[int]], number: signal.Signals) -> Breakage:
    """Sends the signal to real processes, then makes the call."""

    async def strike(intact: Breakage, *args: Any, **kwargs: Any) -> Any:
        for pid in process_ids():
            os.kill(pid, number)
        return await intact(*args, **kwargs)

    return strike


def after(count: int) -> Callable[..., bool]:
    """True from the call after the first ``count``."""
    calls = iter(range(1_000_000))
    return lambda *_, **__: next(calls) >= count
