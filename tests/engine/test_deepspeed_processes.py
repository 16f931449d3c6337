"""Ranks as processes: how they start, fail, die, and go when their driver goes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from deepspeed_support import Layout, make_batch

from colocate.adapters.deepspeed.client import DeepSpeedTrainer
from colocate.adapters.deepspeed.processes import RankDiedError, RankFailedError
from colocate.config import AlgorithmConfig, EmbeddedModelConfig, TrainerConfig
from colocate.core.types import TRAINER_PARTS
from colocate.embedded.model import build_embedded_model
from tests.patience import patient

TOLD_WITHIN_S = 20
"""Far below any collective's timeout, which would be the other way to learn of a death."""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return build_embedded_model(
        tmp_path_factory.mktemp("model"),
        EmbeddedModelConfig(hidden_size=32, intermediate_size=32),
        seed=0,
        dtype="float32",
        max_model_len=96,
    )


@pytest.mark.engine
async def test_two_trainers_start_side_by_side_and_a_killed_rank_is_named_at_once(
    model, tmp_path, monkeypatch
):
    monkeypatch.setenv("MASTER_PORT", "1")
    layout = Layout(zero_stage=1, num_ranks=2)
    trainer = layout.trainer(model, tmp_path / "a", run_id="killed")
    other = Layout(zero_stage=1, num_ranks=1).trainer(model, tmp_path / "b", run_id="bystander")
    try:
        await asyncio.gather(trainer.start(), other.start())
        victim = trainer.process_ids()[1]
        training = asyncio.create_task(trainer.train(make_batch(0, groups=40)))
        await asyncio.sleep(0)
        os.kill(victim, signal.SIGKILL)
        async with asyncio.timeout(patient(TOLD_WITHIN_S)):
            with pytest.raises(
                RankDiedError, match=rf"rank 1 \(process {victim}\) died: killed by SIGKILL; log /"
            ):
                await training
        with pytest.raises(RankFailedError, match="unknown since an earlier failure"):
            await trainer.load()
        assert (await other.train(make_batch(0))).version == 1
        survivors = [*trainer.process_ids(), *other.process_ids()]
        assert len(survivors) == 2
    finally:
        await asyncio.gather(trainer.close(), other.close())
        await trainer.close()
    assert not any(psutil.pid_exists(pid) for pid in survivors)


@pytest.mark.engine
async def test_a_rank_that_cannot_load_its_model_says_why_and_close_still_works(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    trainer = Layout(zero_stage=1, num_ranks=1).trainer(empty, tmp_path, run_id="no-model")
    try:
        with pytest.raises(RankFailedError, match=r"rank 0 failed: .*config.*trainer-rank0\.log\)"):
            await trainer.start()
        log = (tmp_path / "logs" / "trainer-rank0.log").read_text()
        assert "Traceback" in log
    finally:
        await trainer.close()
    assert trainer.process_ids() == []


@pytest.mark.engine
def test_ranks_end_when_their_driver_is_killed(model, tmp_path):
    program = """
import asyncio, sys
from pathlib import Path
from colocate.adapters.deepspeed.client import DeepSpeedTrainer
from colocate.config import AlgorithmConfig, TrainerConfig

async def main():
    trainer = DeepSpeedTrainer(
        sys.argv[1], TrainerConfig(), AlgorithmConfig(group_size=2, groups_per_step=1),
        dtype="float32", temperature=1.0, steps=1, seed=0, device="cpu",
        log_dir=Path(sys.argv[2]), run_id="orphans",
    )
    await trainer.start()
    print(*trainer.process_ids(), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""
    driver = subprocess.Popen(
        [sys.executable, "-c", program, str(model), str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert driver.stdout is not None
        ranks = [psutil.Process(int(pid)) for pid in driver.stdout.readline().split()]
        assert len(ranks) == 1
    finally:
        driver.kill()
        driver.wait()
    _, alive = psutil.wait_procs(ranks, timeout=patient(TOLD_WITHIN_S))
    assert alive == []


def test_the_driver_imports_neither_torch_nor_deepspeed_and_keeps_its_environment():
    program = """
import os, sys
before = dict(os.environ)
import colocate.adapters.deepspeed.client
assert dict(os.environ) == before
print(sorted({"torch", "deepspeed", "transformers"} & sys.modules.keys()))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout == "[]\n"


def make_trainer(tmp_path, *, zero_stage: int, dtype: str, temperature: float) -> DeepSpeedTrainer:
    return DeepSpeedTrainer(
        tmp_path,
        TrainerConfig(zero_stage=zero_stage),
        AlgorithmConfig(group_size=2, groups_per_step=1),
        dtype=dtype,
        temperature=temperature,
        steps=1,
        seed=0,
        device="cpu",
        log_dir=tmp_path,
        run_id="refused",
    )


def test_what_could_not_be_offloaded_or_has_no_log_probability_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"zero_stage=0 needs model\.dtype=float32"):
        make_trainer(tmp_path, zero_stage=0, dtype="bfloat16", temperature=1.0)
    with pytest.raises(ValueError, match="temperature must be above 0 to train, but is 0"):
        make_trainer(tmp_path, zero_stage=1, dtype="float32", temperature=0.0)


async def test_a_trainer_that_was_never_started_says_so(tmp_path):
    trainer = make_trainer(tmp_path, zero_stage=1, dtype="float32", temperature=1.0)
    with pytest.raises(RuntimeError, match="has not been started"):
        await trainer.offload(TRAINER_PARTS)
    await trainer.close()
