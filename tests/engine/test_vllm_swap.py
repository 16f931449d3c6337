"""Park, sleep and wake: nothing that was sampled is lost, and memory really comes and goes."""

from __future__ import annotations

import asyncio
import itertools

import psutil
import pytest
from vllm_support import make_request, max_difference, publish, reference_logprobs

from colocate.core.types import FinishReason, Part, SleepMode
from tests.patience import patient

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

PROMPT = [index % 17 for index in range(20)]
LONG = 450
DEPTHS = (SleepMode.KV, SleepMode.LEVEL_1, SleepMode.LEVEL_2)


async def park_midway(engine, requests):
    """Parks once every request has sampled something; returns their partials."""
    tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
    # A later short request ends: by then the earlier ones have been sampled from.
    await engine.generate(make_request("pacemaker", PROMPT, max_new_tokens=8))
    await engine.park()
    return await asyncio.gather(*tasks)


async def until_idle(engine):
    """Returns when the engine's core has no request left, running or waiting."""
    async with asyncio.timeout(patient(10)):
        while await has_work(engine):  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def has_work(engine) -> bool:
    return await engine._running().engine_core.call_utility_async("has_work")


async def test_a_parked_partial_continues_greedily_as_if_it_had_never_been_parked(engine):
    whole = await engine.generate(
        make_request("whole", PROMPT, max_new_tokens=LONG, temperature=0.0)
    )
    request = make_request("parked", PROMPT, max_new_tokens=LONG, temperature=0.0)
    (partial,) = await park_midway(engine, [request])
    assert partial.finish_reason is FinishReason.ABORT
    num_sampled = len(partial.token_ids)
    assert 0 < num_sampled < LONG
    await engine.resume()
    rest = await engine.generate(
        make_request(
            "continued",
            [*PROMPT, *partial.token_ids],
            max_new_tokens=LONG - num_sampled,
            temperature=0.0,
        )
    )
    assert [*partial.token_ids, *rest.token_ids] == list(whole.token_ids)
    assert max_difference([*partial.logprobs, *rest.logprobs], whole.logprobs) < 1e-4


async def test_a_parked_partial_is_a_prefix_of_the_whole(engine):
    requests = [
        make_request(f"parked-{seed}", PROMPT, max_new_tokens=LONG, seed=seed) for seed in range(8)
    ]
    partials = await park_midway(engine, requests)
    await engine.sleep(SleepMode.LEVEL_1)
    await engine.wake("weights")
    await engine.wake("kv_cache")
    for request, partial in zip(requests, partials, strict=True):
        whole = await engine.generate(request)
        num_sampled = len(partial.token_ids)
        assert num_sampled > 0
        assert list(partial.token_ids) == list(whole.token_ids)[:num_sampled]
        assert max_difference(partial.logprobs, whole.logprobs[:num_sampled]) < 1e-4


async def test_requests_submitted_just_before_a_park_all_return(engine):
    tasks = [
        asyncio.create_task(engine.generate(make_request(f"late-{seed}", PROMPT, max_new_tokens=9)))
        for seed in range(200)
    ]
    await asyncio.sleep(0)
    await engine.park()
    results = await asyncio.gather(*tasks)
    assert len({result.request_id for result in results}) == 200
    assert {result.finish_reason for result in results} <= {FinishReason.ABORT, FinishReason.LENGTH}
    assert FinishReason.ABORT in {result.finish_reason for result in results}
    await engine.resume()


async def test_a_request_to_a_parked_engine_comes_back_untouched(engine):
    await engine.park()
    result = await engine.generate(make_request("early", PROMPT))
    assert result.finish_reason is FinishReason.ABORT
    assert not result.token_ids
    await engine.resume()
    result = await engine.generate(make_request("early again", PROMPT))
    assert result.finish_reason is FinishReason.LENGTH


async def test_a_cancelled_request_leaves_nothing_running(engine):
    task = asyncio.create_task(engine.generate(make_request("gone", PROMPT, max_new_tokens=LONG)))
    await engine.generate(make_request("pacemaker", PROMPT, max_new_tokens=2))
    assert await has_work(engine)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert engine._running().get_num_unfinished_requests() == 0
    await until_idle(engine)
    await engine.park()
    await engine.resume()


async def test_a_request_given_up_before_it_was_sent_leaves_nothing_running(engine):
    tasks = [
        asyncio.create_task(engine.generate(make_request(f"gone-{i}", PROMPT, max_new_tokens=LONG)))
        for i in range(20)
    ]
    for index, task in enumerate(tasks):
        if index % 5 == 0:
            await asyncio.sleep(0)
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(result) for result in results} == {asyncio.CancelledError}
    await until_idle(engine)


@pytest.mark.parametrize("mode", [SleepMode.KV, SleepMode.LEVEL_1])
async def test_weights_that_were_kept_are_served_again(engine, mode):
    request = make_request("same", PROMPT, max_new_tokens=30, temperature=0.0)
    before = await engine.generate(request)
    awake = await engine.residency()
    await engine.park()
    await engine.sleep(mode)
    asleep = await engine.residency()
    assert asleep == {Part.WEIGHTS: awake[Part.WEIGHTS], Part.KV_CACHE: 0}
    await engine.wake("weights")
    await engine.wake("kv_cache")
    assert await engine.residency() == awake
    assert (await engine.generate(request)).token_ids == before.token_ids


@pytest.mark.parametrize("modes", list(itertools.combinations(DEPTHS, 2)), ids="+".join)
async def test_a_sleeping_engine_sleeps_deeper(engine, tied_models, exporter, modes):
    await engine.park()
    for mode in modes:
        await engine.sleep(mode)
    weights = (await engine.residency())[Part.WEIGHTS]
    assert (weights == 0) == (modes[-1] is SleepMode.LEVEL_2)
    await publish(engine, exporter(tied_models.first), version=0)
    result = await engine.generate(make_request("deep", PROMPT))
    expected = reference_logprobs(tied_models.first, PROMPT, result.token_ids)
    assert max_difference(result.logprobs, expected) < 1e-3


async def test_a_sleep_less_deep_than_the_present_one_is_refused(engine):
    await engine.park()
    await engine.sleep(SleepMode.LEVEL_2)
    with pytest.raises(RuntimeError, match="KV takes less than LEVEL_2"):
        await engine.sleep(SleepMode.KV)
    with pytest.raises(ValueError, match="PAUSE"):
        await engine.sleep(SleepMode.PAUSE)


async def test_weights_woken_in_vain_can_be_dropped_again(engine, tied_models, exporter):
    await engine.park()
    await engine.sleep(SleepMode.LEVEL_2)
    await engine.wake("weights")
    await engine.sleep(SleepMode.LEVEL_2)
    assert set((await engine.residency()).values()) == {0}
    await publish(engine, exporter(tied_models.first), version=0)
    result = await engine.generate(make_request("again", PROMPT))
    expected = reference_logprobs(tied_models.first, PROMPT, result.token_ids)
    assert max_difference(result.logprobs, expected) < 1e-3


async def test_the_memory_of_the_processes_falls_and_comes_back(engine, tied_models, exporter):
    def resident_bytes() -> int:
        return sum(psutil.Process(pid).memory_info().rss for pid in engine.process_ids())

    async def cycle() -> tuple[int, int]:
        await engine.park()
        await engine.sleep(SleepMode.LEVEL_2)
        assert set((await engine.residency()).values()) == {0}
        asleep = resident_bytes()
        await publish(engine, exporter(tied_models.first), version=0)
        return asleep, resident_bytes()

    weights_and_cache = await engine.residency()
    asleep, awake = await cycle()
    assert await engine.residency() == weights_and_cache
    cache = weights_and_cache[Part.KV_CACHE]
    assert 0.95 * cache < awake - asleep < 1.1 * cache
    for _ in range(5):
        asleep_again, awake_again = await cycle()
    assert asleep_again < asleep + 0.05 * cache
    assert awake_again < awake + 0.05 * cache


async def test_batches_of_all_sizes_leave_no_residual_that_grows(engine):
    async def cycle(seed: int) -> int:
        requests = [
            make_request(
                f"{seed}-{i}",
                PROMPT * (1 + i % 16),
                max_new_tokens=20 + i % 50,
                seed=100 * seed + i,
            )
            for i in range(60)
        ]
        await asyncio.gather(*(engine.generate(request) for request in requests))
        await engine.park()
        await engine.sleep(SleepMode.KV)
        residual = sum(psutil.Process(pid).memory_info().rss for pid in engine.process_ids())
        await engine.wake("kv_cache")
        return residual

    residuals = [await cycle(seed) for seed in range(8)]
    assert residuals[-1] - residuals[2] < 4 * 2**20


async def test_memory_is_woken_one_kind_at_a_time_weights_first(engine):
    with pytest.raises(RuntimeError, match="must be parked"):
        await engine.sleep(SleepMode.LEVEL_1)
    await engine.park()
    await engine.sleep(SleepMode.LEVEL_1)
    with pytest.raises(RuntimeError, match="weights must be woken"):
        await engine.wake("kv_cache")
    with pytest.raises(RuntimeError, match="asleep"):
        await engine.resume()
    await engine.wake("weights")
    assert (await engine.residency())[Part.KV_CACHE] == 0
    await engine.wake("kv_cache")


async def test_weights_dropped_and_not_published_are_not_served(engine):
    await engine.park()
    await engine.sleep(SleepMode.LEVEL_2)
    await engine.wake("weights")
    await engine.wake("kv_cache")
    with pytest.raises(RuntimeError, match="level 2 sleep dropped them"):
        await engine.generate(make_request("refused", PROMPT))
