"""Keeps environments from working all at once, where each step is work for this machine."""

from __future__ import annotations

import asyncio

from colocate.ports import Environment, Prompt, StepOutcome


class LimitedEnvironment:
    """An environment that resets and steps only while it has one of the places in ``room``.

    Closing never waits: what an episode holds must be freed whatever others do.
    """

    def __init__(self, inner: Environment, room: asyncio.Semaphore) -> None:
        self._inner = inner
        self._room = room
        self.is_replayable = getattr(inner, "is_replayable", False)

    async def reset(self, prompt: Prompt, seed: int) -> str:
        async with self._room:
            return await self._inner.reset(prompt, seed)

    async def step(self, action: str) -> StepOutcome:
        async with self._room:
            return await self._inner.step(action)

    async def close(self) -> None:
        await self._inner.close()
