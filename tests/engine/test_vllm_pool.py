"""Two real engines behind one port. The last tests end them, by force."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import dataclass

import psutil
import pytest
import pytest_asyncio
from faulty_worker import HANG_S, make_faulty, misbehave
from vllm_support import (
    FolderExporter,
    make_request,
    max_difference,
    publish,
    reference_logprobs,
)

from colocate.adapters.engine_pool import EnginePool
from colocate.adapters.memory.processes import resident_bytes
from colocate.adapters.vllm.engine import VllmInference
from colocate.adapters.vllm.processes import EngineDiedError
from colocate.adapters.weights import StreamedTransfer
from colocate.config import InferenceConfig
from colocate.core.types import FinishReason, Part, SleepMode
from tests.contracts.inference import EngineUnderTest, InferenceContract
from tests.patience import patient
from tests.processes import runs

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

KV_CACHE_BYTES = 64 * 2**20
NEWLINE = 12
PROMPT = [index % 17 for index in range(20)]


@dataclass
class TwoEngines:
    """``second`` is the one that can be told to misbehave."""

    pool: EnginePool
    first: VllmInference
    second: VllmInference


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def running(tied_models, tmp_path_factory) -> AsyncIterator[TwoEngines]:
    folder = tmp_path_factory.mktemp("pool")
    config = InferenceConfig(
        kv_cache_memory_bytes=KV_CACHE_BYTES, max_model_len=512, max_num_seqs=64, num_engines=2
    )
    first, second = [
        VllmInference(
            tied_models.first,
            config,
            dtype="float32",
            device="cpu",
            seed=0,
            log_file=folder / f"vllm.{index}.log",
            run_id="pool",
            threads=1,
        )
        for index in range(2)
    ]
    make_faulty(second)
    pool = EnginePool([first, second], one_device=True)
    await pool.start()
    yield TwoEngines(pool=pool, first=first, second=second)
    await pool.close()
    assert not pool.process_ids()


@pytest_asyncio.fixture(loop_scope="session")
async def engines(running: TwoEngines, tied_models, exporter) -> AsyncIterator[TwoEngines]:
    """Both engines awake, serving the first model at version 0, whatever a test did to them."""
    yield running
    await running.pool.park()
    for engine in (running.first, running.second):
        # Behind the engine's back: a test may have left it, or vLLM, with a wrong idea of itself.
        tags = ["weights", "kv_cache"]
        await engine._running().collective_rpc("wake_up", kwargs={"tags": tags})
        with suppress(RuntimeError):
            await engine.wake("weights")
    await publish(running.pool, exporter(tied_models.first), version=0)


def resident(pool: EnginePool) -> int:
    return sum(resident_bytes(pid) for pid in pool.process_ids())


async def assert_both_serve(pool: EnginePool, folder, *, not_like) -> None:
    scored = await pool.prompt_logprobs([PROMPT])
    assert len(scored) == 2
    for (scores,) in scored:
        assert max_difference(scores, reference_logprobs(folder, PROMPT[:1], PROMPT[1:])) < 1e-3
        assert max_difference(scores, reference_logprobs(not_like, PROMPT[:1], PROMPT[1:])) > 0.1


async def test_the_first_swap_already_releases_the_caches_of_both_engines(
    engines, tied_models, exporter
):
    pool = engines.pool
    for _ in range(2):
        await pool.park()
        awake = resident(pool)
        await pool.sleep(SleepMode.KV)
        assert awake - resident(pool) > 0.9 * 2 * KV_CACHE_BYTES
        await publish(pool, exporter(tied_models.first), version=0)
    assert (await pool.residency())[Part.KV_CACHE] >= 0.99 * 2 * KV_CACHE_BYTES


class TestVllmPool(InferenceContract):
    @pytest_asyncio.fixture(loop_scope="session")
    async def engine(self, engines: TwoEngines, tied_models, tmp_path, request) -> EngineUnderTest:
        exporter = FolderExporter(tied_models.second, tmp_path)
        return EngineUnderTest(
            inference=engines.pool,
            publish=StreamedTransfer(exporter, engines.pool).publish,
            stop_token=NEWLINE,
            long_request_tokens=450,
            name=request.node.name,
            next_version=100,
        )


async def test_weights_reach_every_engine_twice(engines, tied_models, exporter):
    first, second = tied_models.first, tied_models.second
    for version, (folder, other) in enumerate([(second, first), (first, second)], start=1):
        await engines.pool.park()
        await engines.pool.sleep(SleepMode.LEVEL_2)
        await publish(engines.pool, exporter(folder), version=version)
        assert engines.pool.weights_version == version
        await assert_both_serve(engines.pool, folder, not_like=other)


async def test_requests_are_spread_over_the_engines_and_turns_stay_where_their_prefix_is(engines):
    pool = engines.pool
    prompt = [index % 13 for index in range(300)]
    warm = await pool.generate(make_request("warm", prompt, affinity="mine"))
    tasks = [
        asyncio.create_task(
            pool.generate(make_request(f"many-{i}", PROMPT, max_new_tokens=200, seed=i))
        )
        for i in range(8)
    ]
    await pool.generate(make_request("pacemaker", PROMPT, max_new_tokens=2))
    unfinished = [
        engine._running().get_num_unfinished_requests()
        for engine in (engines.first, engines.second)
    ]
    assert min(unfinished) >= 3
    turn = make_request("turn", [*prompt, *warm.token_ids], affinity="mine")
    assert (await pool.generate(turn)).num_cached_tokens >= 256
    results = await asyncio.gather(*tasks)
    assert {result.finish_reason for result in results} == {FinishReason.LENGTH}


SLEEPS = {"discard": SleepMode.KV, "sleep": SleepMode.LEVEL_2}


@pytest.mark.parametrize(
    ("how", "message"), [("fail", "scripted failure"), ("lie", "must hold no bytes")]
)
@pytest.mark.parametrize("method", SLEEPS)
async def test_a_sleep_that_fails_or_only_says_it_slept_names_the_engine(
    engines, method, how, message
):
    await engines.pool.park()
    await misbehave(engines.second, method, how)
    with pytest.raises(RuntimeError, match=f"sleep: engine 1 of 2: .*{message}"):
        await engines.pool.sleep(SLEEPS[method])
    with pytest.raises(RuntimeError, match="publish a whole set"):
        await engines.pool.generate(make_request("refused", PROMPT))


@pytest.mark.parametrize(
    ("how", "message"), [("fail", "scripted failure"), ("lie", "hold too few bytes of")]
)
@pytest.mark.parametrize("tag", ["weights", "kv_cache"])
async def test_a_wake_that_fails_or_only_says_it_woke_names_the_engine(
    engines, tied_models, exporter, tag, how, message
):
    pool = engines.pool
    await pool.park()
    await pool.sleep(SleepMode.LEVEL_2)
    if tag == "kv_cache":
        await pool.wake("weights")
        await StreamedTransfer(exporter(tied_models.first), pool).publish(1)
    await misbehave(engines.second, "wake_up", how)
    with pytest.raises(RuntimeError, match=f"wake {tag}: engine 1 of 2: .*{message}"):
        await pool.wake(tag)
    with pytest.raises(RuntimeError, match="publish a whole set"):
        await pool.generate(make_request("refused", PROMPT))


async def test_a_collection_that_fails_names_the_engine(engines):
    await engines.pool.park()
    await misbehave(engines.second, "collect_garbage", "fail")
    with pytest.raises(RuntimeError, match=r"collect: engine 1 of 2: .*scripted failure"):
        await engines.pool.collect()


@pytest.mark.parametrize("method", SLEEPS)
async def test_a_call_that_hangs_is_ended_by_its_callers_patience_and_is_not_forgotten(
    engines, tied_models, exporter, method
):
    pool = engines.pool
    await pool.park()
    await misbehave(engines.second, method, "hang")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(pool.sleep(SLEEPS[method]), HANG_S / 4)
    with pytest.raises(RuntimeError, match="sleep was broken off"):
        await pool.generate(make_request("refused", PROMPT))
    await publish(pool, exporter(tied_models.first), version=3)
    await assert_both_serve(pool, tied_models.first, not_like=tied_models.second)


def kill(engine: VllmInference, signal_number: int) -> None:
    """Sends the signal to the engine's core."""
    os.kill(engine.process_ids()[0], signal_number)


async def test_an_engine_that_dies_in_a_sleep_is_named_and_one_that_stops_is_closed_all_the_same(
    running,
):
    pool = running.pool
    await pool.park()
    kill(running.second, signal.SIGSTOP)
    sleeping = asyncio.create_task(pool.sleep(SleepMode.LEVEL_2))
    await asyncio.sleep(0.5)
    assert not sleeping.done()
    kill(running.second, signal.SIGKILL)
    with pytest.raises(
        RuntimeError,
        match=r"sleep: engine 1 of 2: vLLM's engine died: .*SIGKILL"
        r".*vllm\.1\.log",
    ) as failure:
        await asyncio.wait_for(sleeping, patient(20))
    assert isinstance(failure.value.__cause__, EngineDiedError)

    processes = [psutil.Process(pid) for pid in pool.process_ids()]
    assert processes
    kill(running.first, signal.SIGSTOP)
    for call in (pool.wake("weights"), pool.residency(), pool.park()):
        with pytest.raises((TimeoutError, RuntimeError)):
            await asyncio.wait_for(call, 1)
    await asyncio.wait_for(pool.close(), patient(60))
    assert not pool.process_ids()
    assert not any(runs(process) for process in processes)
