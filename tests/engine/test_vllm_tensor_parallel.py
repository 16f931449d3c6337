"""One engine of two workers, each with half of every weight, is as true as one of one."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator

import psutil
import pytest
import pytest_asyncio
from vllm_support import make_request, max_difference, publish, reference_logprobs

from colocate.adapters.memory.processes import resident_bytes
from colocate.adapters.vllm.engine import VllmInference
from colocate.adapters.vllm.processes import EngineDiedError
from colocate.config import InferenceConfig
from colocate.core.types import Part, SleepMode
from tests.patience import patient

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

KV_CACHE_BYTES = 64 * 2**20
PROMPT = [index % 17 for index in range(300)]
MODES = [SleepMode.KV, SleepMode.LEVEL_1, SleepMode.LEVEL_2]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def pair(tied_models, tmp_path_factory) -> AsyncIterator[VllmInference]:
    engine = VllmInference(
        tied_models.first,
        InferenceConfig(
            kv_cache_memory_bytes=KV_CACHE_BYTES,
            max_model_len=512,
            max_num_seqs=64,
            tensor_parallel_size=2,
        ),
        dtype="float32",
        device="cpu",
        seed=0,
        log_file=tmp_path_factory.mktemp("pair") / "vllm.log",
        run_id="pair",
        threads=2,
    )
    await engine.start()
    yield engine
    await engine.close()
    assert not engine.process_ids()


async def test_two_workers_sample_what_one_samples(pair, engine):
    request = make_request("greedy", PROMPT, max_new_tokens=60, temperature=0.0)
    alone, together = await asyncio.gather(engine.generate(request), pair.generate(request))
    assert together.token_ids == alone.token_ids
    assert max_difference(together.logprobs, alone.logprobs) < 1e-4


@pytest.mark.parametrize("mode", MODES)
async def test_both_workers_give_memory_up_and_serve_the_weights_published_after_it(
    pair, tied_models, exporter, mode
):
    def resident() -> int:
        return sum(resident_bytes(pid) for pid in pair.process_ids())

    held = await pair.residency()
    assert held[Part.KV_CACHE] >= 0.99 * 2 * KV_CACHE_BYTES
    for version, (folder, other) in enumerate(
        [(tied_models.second, tied_models.first), (tied_models.first, tied_models.second)], start=1
    ):
        await pair.park()
        awake = resident()
        await pair.sleep(mode)
        assert awake - resident() > 0.9 * 2 * KV_CACHE_BYTES
        weights = 0 if mode is SleepMode.LEVEL_2 else held[Part.WEIGHTS]
        assert await pair.residency() == {Part.KV_CACHE: 0, Part.WEIGHTS: weights}
        await publish(pair, exporter(folder), version=version)
        assert await pair.residency() == held
        result = await pair.generate(make_request("after", PROMPT))
        assert {span.version for span in result.spans} == {version}
        expected = reference_logprobs(folder, PROMPT, result.token_ids)
        assert max_difference(result.logprobs, expected) < 1e-3
        unlike = reference_logprobs(other, PROMPT, result.token_ids)
        assert max_difference(result.logprobs, unlike) > 0.1


async def test_a_worker_that_dies_in_a_sleep_ends_the_engine(pair):
    _, *others = pair.process_ids()
    workers = [p for p in others if psutil.Process(p).memory_info().rss > KV_CACHE_BYTES]
    assert len(workers) == 2
    await pair.park()
    os.kill(workers[1], signal.SIGSTOP)
    sleeping = asyncio.create_task(pair.sleep(SleepMode.LEVEL_2))
    await asyncio.sleep(0.5)
    assert not sleeping.done()
    os.kill(workers[1], signal.SIGKILL)
    with pytest.raises(EngineDiedError, match=r"engine died: process \d+.*; see .*vllm\.log"):
        await asyncio.wait_for(sleeping, patient(30))
