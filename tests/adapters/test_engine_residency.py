"""Sleeping on GPUs, where the device is not the host. vLLM is a stand-in here: there is no GPU."""

from __future__ import annotations

from typing import Any

import pytest

from colocate.adapters.vllm.residency import EngineResidency
from colocate.core.types import Part, SleepMode


class TwoGpus:
    """As vLLM's ``AsyncLLM`` with two workers. ``stuck``: bytes that no sleep releases."""

    def __init__(self, stuck: int = 0) -> None:
        self.awake = [{"weights": 5, "kv_cache": 10}, {"weights": 7, "kv_cache": 9}]
        self.held = [dict(worker) for worker in self.awake]
        self.stuck = stuck

    def _release(self, *tags: str) -> None:
        for worker in self.held:
            worker.update(dict.fromkeys(tags, 0))
        self.held[1]["weights"] += self.stuck if "weights" in tags else 0

    async def collective_rpc(self, method: str, **_: Any) -> list[dict[str, int]]:
        assert method == "residency"
        return self.held

    async def release_kv_cache_memory(self) -> None:
        self._release("kv_cache")

    async def sleep(self, level: int, mode: str) -> None:
        self._release("weights", "kv_cache")

    async def wake_up(self, tags: list[str]) -> bool:
        for worker, awake in zip(self.held, self.awake, strict=True):
            worker.update({tag: awake[tag] for tag in tags})
        return self.held == self.awake


async def test_the_fullest_gpu_counts() -> None:
    residency = EngineResidency(host_is_device=False)
    assert await residency.measure(TwoGpus()) == {Part.WEIGHTS: 7, Part.KV_CACHE: 9}


@pytest.mark.parametrize("mode", [SleepMode.LEVEL_1, SleepMode.LEVEL_2])
async def test_at_both_levels_the_weights_must_leave_every_gpu(mode: SleepMode) -> None:
    residency, engine = EngineResidency(host_is_device=False), TwoGpus()
    await residency.give_up(engine, mode)
    assert set((await residency.measure(engine)).values()) == {0}
    await residency.take_back(engine, Part.WEIGHTS)
    await residency.take_back(engine, Part.KV_CACHE)
    assert engine.held == engine.awake
    with pytest.raises(RuntimeError, match="must hold no bytes"):
        await EngineResidency(host_is_device=False).give_up(TwoGpus(stuck=1), mode)


async def test_level_2_after_level_1_is_refused_where_the_copy_is_the_hosts() -> None:
    residency, engine = EngineResidency(host_is_device=False), TwoGpus()
    await residency.give_up(engine, SleepMode.LEVEL_1)
    with pytest.raises(RuntimeError, match="vLLM cannot drop the copy"):
        await residency.give_up(engine, SleepMode.LEVEL_2)
    assert residency.mode is SleepMode.LEVEL_1
