"""What of an engine's memory is awake, and the calls that change it, each verified by bytes.

::

    PAUSE --release_kv_cache_memory--> KV --sleep(1 | 2)--> LEVEL_1, LEVEL_2
      ^                                ^                        |
      +------ wake kv_cache -----------+------ wake weights ----+

vLLM's answers are not relied on: it ignores a wake of something that is awake, and reports a sleep
that freed nothing as done. What the workers hold afterwards decides.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from colocate.core.memory import EVICTED
from colocate.core.types import ENGINE_PARTS, Part, SleepMode

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_DEPTH = tuple(EVICTED)
"""The modes, from the shallowest to the deepest."""


class EngineResidency:
    """Follows one engine through sleep and wake.

    Attributes:
        mode: What the engine has given up so far; PAUSE where it is awake. Set before a call that
            may fail, so that a part which may be gone is never taken for one that is there.

    Args:
        host_is_device: On CPU: level 1 then leaves the weights where they are.
    """

    def __init__(self, *, host_is_device: bool) -> None:
        self.mode = SleepMode.PAUSE
        self._host_is_device = host_is_device
        self._awake_kv: Sequence[int] = ()

    @property
    def asleep(self) -> frozenset[Part]:
        return EVICTED[self.mode]

    async def measure(self, engine: AsyncLLM) -> dict[Part, int]:
        """Bytes by part: of all workers together on CPU, of the fullest worker on GPUs."""
        reports = await self._reports(engine)
        if self._host_is_device:
            return {part: sum(report[part] for report in reports) for part in sorted(ENGINE_PARTS)}
        fullest: dict[Part, int] = max(reports, key=lambda report: sum(report.values()))
        return fullest

    async def give_up(self, engine: AsyncLLM, mode: SleepMode) -> None:
        """Has a paused engine give up what ``mode`` says and it still holds.

        Raises:
            ValueError: PAUSE, with which nothing is given up.
            RuntimeError: less deep than the engine sleeps already, level 2 after a level 1 that
                moved the weights to the host, or bytes that are still held.
        """
        before = self.mode
        if mode is SleepMode.PAUSE:
            raise ValueError("sleep: PAUSE gives nothing up; parking alone is that")
        if _DEPTH.index(mode) < _DEPTH.index(before):
            raise RuntimeError(f"sleep: {mode.name} takes less than {before.name}, which holds")
        if (before, mode) == (SleepMode.LEVEL_1, SleepMode.LEVEL_2) and not self._host_is_device:
            raise RuntimeError(
                "sleep: vLLM cannot drop the copy of the weights that level 1 made in host memory, "
                "and the device holds none of them; wake the engine, then sleep at level 2"
            )
        if before is SleepMode.PAUSE:
            self._awake_kv = [report[Part.KV_CACHE] for report in await self._reports(engine)]
        self.mode = mode
        if mode is SleepMode.KV and before is not mode:
            await engine.release_kv_cache_memory()
        elif before is SleepMode.LEVEL_1 and before is not mode:
            # vLLM takes an engine whose weights sleep for one that has nothing left to give.
            await engine.collective_rpc("sleep", kwargs={"level": 2})
        elif before is not mode:
            await engine.sleep(int(mode), mode="abort")
        await self._require_gone(engine, self._off_device(), f"sleep: after {mode.name}")

    async def take_back(self, engine: AsyncLLM, part: Part) -> None:
        """Wakes one part that is asleep, and sees that the others still are.

        Raises:
            RuntimeError: bytes that a worker lacks, bytes of another part that it has, or an
                engine that calls itself awake or asleep when it is not.
        """
        mode = SleepMode.PAUSE if part is Part.KV_CACHE else SleepMode.KV
        # One tag a call: vLLM ignores all tags of a call after one that is awake.
        reports_awake = await engine.wake_up([part.value])
        reports = await self._reports(engine)
        expected = self._awake_kv if part is Part.KV_CACHE else [1] * len(reports)
        held = [report[part] for report in reports]
        if any(has < needs for has, needs in zip(held, expected, strict=True)):
            raise RuntimeError(
                f"wake: the workers hold too few bytes of {part.value!r}: {reports}; before the "
                f"sleep they held {expected if part is Part.KV_CACHE else 'more than none'}"
            )
        self.mode = mode
        if reports_awake != (mode is SleepMode.PAUSE):
            raise RuntimeError(
                f"wake: after {part.value!r} the engine reports that it is "
                f"{'fully awake' if reports_awake else 'still asleep'}, but asleep must be "
                f"{sorted(self.asleep) or 'nothing'}"
            )
        await self._require_gone(engine, self.asleep, f"wake: after {part.value!r}")

    def _off_device(self) -> Collection[Part]:
        if self.mode is SleepMode.LEVEL_1 and self._host_is_device:
            return {Part.KV_CACHE}
        return self.asleep

    async def _require_gone(self, engine: AsyncLLM, parts: Collection[Part], when: str) -> None:
        reports = await self._reports(engine)
        if any(report[part] > 0 for report in reports for part in parts):
            raise RuntimeError(
                f"{when} the workers must hold no bytes of {sorted(parts)}, but hold {reports}"
            )

    async def _reports(self, engine: AsyncLLM) -> list[dict[Part, int]]:
        reports = await engine.collective_rpc("residency")
        return [{Part(tag): num_bytes for tag, num_bytes in report.items()} for report in reports]
