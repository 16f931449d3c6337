"""An engine's core that stops, and is then killed, in the middle of a call ends the call.

The death in a sleep is in ``test_vllm_pool``, that of a request in ``test_vllm_processes``.
"""

from __future__ import annotations

import asyncio
import os
import signal

import psutil
import pytest

from colocate.adapters.vllm.engine import VllmInference
from colocate.adapters.vllm.processes import EngineDiedError
from colocate.config import InferenceConfig
from colocate.core.types import SleepMode, Version
from tests.patience import patient
from tests.processes import runs

pytestmark = [pytest.mark.engine, pytest.mark.asyncio]


async def nothing(engine: VllmInference) -> None:
    pass


async def put_to_sleep(engine: VllmInference) -> None:
    await engine.park()
    await engine.sleep(SleepMode.LEVEL_2)


async def begin_update(engine: VllmInference) -> None:
    await engine.park()
    await engine.begin_weight_update()


@pytest.mark.parametrize(
    ("prepare", "call"),
    [
        pytest.param(nothing, lambda engine: engine.park(), id="park"),
        pytest.param(put_to_sleep, lambda engine: engine.wake("weights"), id="wake"),
        pytest.param(
            begin_update, lambda engine: engine.finish_weight_update(Version(1)), id="weight update"
        ),
    ],
)
async def test_a_call_to_a_stopped_core_can_be_given_up_and_ends_when_the_core_is_killed(
    tied_models, tmp_path, prepare, call
):
    engine = VllmInference(
        tied_models.first,
        InferenceConfig(kv_cache_memory_bytes=2**24, max_model_len=512, max_num_seqs=8),
        dtype="float32",
        device="cpu",
        seed=0,
        log_file=tmp_path / "vllm.log",
        run_id="deaths",
        threads=1,
    )
    await engine.start()
    try:
        await prepare(engine)
        processes = [psutil.Process(pid) for pid in engine.process_ids()]
        os.kill(processes[0].pid, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call(engine), 1)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(engine.residency(), 1)
        waiting = asyncio.create_task(call(engine))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        os.kill(processes[0].pid, signal.SIGKILL)
        with pytest.raises(EngineDiedError, match=r"SIGKILL.*vllm\.log"):
            await asyncio.wait_for(waiting, patient(20))
        with pytest.raises(EngineDiedError):
            await engine.residency()
    finally:
        await asyncio.wait_for(engine.close(), patient(60))
    assert not any(runs(process) for process in processes)
