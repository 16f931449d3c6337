"""What the driver relies on of an engine. Run against every implementation of the port."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import pytest

from colocate.core.types import FinishReason, Part, SleepMode, Version
from colocate.ports import Generation, GenerationRequest, Inference


@dataclass
class EngineUnderTest:
    """A started engine, and how to publish a version's weights into it.

    ``stop_token`` is a token that the engine's model knows; ``next_version`` counts up.
    """

    inference: Inference
    publish: Callable[[Version], Awaitable[object]]
    stop_token: int
    long_request_tokens: int
    name: str
    counter: int = 0
    next_version: int = 1

    def request(self, max_new_tokens: int = 4, **changes: object) -> GenerationRequest:
        self.counter += 1
        fields: dict[str, object] = {
            "request_id": f"{self.name}-{self.counter}",
            "prompt_token_ids": [1, 2, 3],
            "max_new_tokens": max_new_tokens,
            "seed": self.counter,
            "temperature": 1.0,
        }
        return GenerationRequest(**{**fields, **changes})  # type: ignore[arg-type]

    async def swap(self, *modes: SleepMode) -> Version:
        """A whole swap, as the driver does it; returns the version that was published."""
        await self.inference.park()
        for mode in modes:
            await self.inference.sleep(mode)
        await self.inference.wake("weights")
        version = await self.publish_next()
        await self.inference.wake("kv_cache")
        return version

    async def publish_next(self) -> Version:
        version = Version(self.next_version)
        self.next_version += 1
        await self.publish(version)
        return version


def check_shape(generation: Generation) -> None:
    count = len(generation.token_ids)
    assert len(generation.logprobs) == count
    assert sum(span.length for span in generation.spans) == count
    assert all(math.isfinite(p) and p <= 1e-6 for p in generation.logprobs)


class InferenceContract:
    """Subclasses provide the fixture ``engine``."""

    async def test_every_token_has_its_log_probability_and_its_version(
        self, engine: EngineUnderTest
    ) -> None:
        generation = await engine.inference.generate(engine.request(5))
        check_shape(generation)
        assert len(generation.token_ids) == 5
        assert generation.finish_reason is FinishReason.LENGTH

    async def test_a_stop_token_ends_the_request_and_is_kept(self, engine: EngineUnderTest) -> None:
        requests = [
            engine.request(40, stop_token_ids=(engine.stop_token,), prompt_token_ids=[1 + i % 4])
            for i in range(24)
        ]
        generations = await asyncio.gather(*(engine.inference.generate(r) for r in requests))
        stopped = [g for g in generations if g.finish_reason is FinishReason.STOP]
        assert stopped
        for generation in stopped:
            assert generation.token_ids[-1] == engine.stop_token
            assert engine.stop_token not in list(generation.token_ids)[:-1]

    async def test_a_seed_gives_the_same_tokens_again(self, engine: EngineUnderTest) -> None:
        first, again, other = [
            await engine.inference.generate(engine.request(12, seed=seed)) for seed in (5, 5, 6)
        ]
        assert list(first.token_ids) == list(again.token_ids)
        assert list(first.token_ids) != list(other.token_ids)

    async def test_a_park_returns_every_request_with_what_it_had_sampled(
        self, engine: EngineUnderTest
    ) -> None:
        count = engine.long_request_tokens
        requests = [engine.request(count) for _ in range(8)]
        tasks = [asyncio.create_task(engine.inference.generate(r)) for r in requests]
        await asyncio.sleep(0.15)
        await engine.inference.park()
        generations = await asyncio.wait_for(asyncio.gather(*tasks), 20)
        await engine.inference.resume()
        assert [g.request_id for g in generations] == [r.request_id for r in requests]
        for generation in generations:
            check_shape(generation)
        assert any(g.finish_reason is FinishReason.ABORT for g in generations)

    async def test_a_request_made_just_before_or_during_a_park_comes_back_untouched_or_whole(
        self, engine: EngineUnderTest
    ) -> None:
        early = [asyncio.create_task(engine.inference.generate(engine.request())) for _ in range(4)]
        await engine.inference.park()
        late = await asyncio.wait_for(engine.inference.generate(engine.request()), 20)
        assert late.finish_reason is FinishReason.ABORT
        assert not late.token_ids
        for generation in await asyncio.wait_for(asyncio.gather(*early), 20):
            check_shape(generation)
        await engine.inference.resume()
        after = await engine.inference.generate(engine.request())
        assert after.finish_reason is FinishReason.LENGTH

    @pytest.mark.parametrize(
        "modes",
        [
            (SleepMode.KV,),
            (SleepMode.LEVEL_1,),
            (SleepMode.LEVEL_2,),
            (SleepMode.KV, SleepMode.LEVEL_2),
            (SleepMode.LEVEL_2, SleepMode.LEVEL_2),
        ],
        ids="+".join,
    )
    async def test_tokens_after_a_swap_carry_the_published_version(
        self, engine: EngineUnderTest, modes: tuple[SleepMode, ...]
    ) -> None:
        version = await engine.swap(*modes)
        generation = await engine.inference.generate(engine.request())
        check_shape(generation)
        assert {span.version for span in generation.spans} == {version}

    async def test_tokens_after_a_pause_carry_the_version_published_in_it(
        self, engine: EngineUnderTest
    ) -> None:
        await engine.inference.park()
        version = await engine.publish_next()
        await engine.inference.resume()
        generation = await engine.inference.generate(engine.request())
        assert {span.version for span in generation.spans} == {version}

    async def test_a_sleep_gives_up_what_its_mode_says_and_a_wake_takes_one_kind_back(
        self, engine: EngineUnderTest
    ) -> None:
        inference = engine.inference
        awake = await inference.residency()
        assert set(awake) == {Part.KV_CACHE, Part.WEIGHTS}
        assert min(awake.values()) > 0
        await inference.park()
        await inference.sleep(SleepMode.KV)
        assert await inference.residency() == {**awake, Part.KV_CACHE: 0}
        await inference.sleep(SleepMode.LEVEL_2)
        assert set((await inference.residency()).values()) == {0}
        await inference.wake("weights")
        woken = await inference.residency()
        assert woken[Part.KV_CACHE] == 0
        assert woken[Part.WEIGHTS] > 0
        await engine.publish_next()
        await inference.wake("kv_cache")
        assert await inference.residency() == awake

    async def test_garbage_is_collected_only_while_parked(self, engine: EngineUnderTest) -> None:
        with pytest.raises(RuntimeError, match="parked"):
            await engine.inference.collect()
        await engine.inference.park()
        before = await engine.inference.residency()
        await engine.inference.collect()
        assert await engine.inference.residency() == before
        await engine.inference.resume()

    async def test_sleep_without_a_park_is_refused(self, engine: EngineUnderTest) -> None:
        with pytest.raises(RuntimeError):
            await engine.inference.sleep(SleepMode.LEVEL_2)
        generation = await engine.inference.generate(engine.request())
        assert generation.finish_reason is FinishReason.LENGTH

    async def test_weights_are_not_published_to_an_engine_that_may_generate(
        self, engine: EngineUnderTest
    ) -> None:
        with pytest.raises(RuntimeError, match="parked"):
            await engine.publish(Version(engine.next_version))
        generation = await engine.inference.generate(engine.request())
        assert generation.finish_reason is FinishReason.LENGTH

    async def test_the_kv_cache_is_not_woken_before_the_weights(
        self, engine: EngineUnderTest
    ) -> None:
        await engine.inference.park()
        await engine.inference.sleep(SleepMode.LEVEL_2)
        with pytest.raises(RuntimeError):
            await engine.inference.wake("kv_cache")
        await engine.inference.wake("weights")
        await engine.publish_next()
        await engine.inference.wake("kv_cache")
        generation = await engine.inference.generate(engine.request())
        assert generation.finish_reason is FinishReason.LENGTH
