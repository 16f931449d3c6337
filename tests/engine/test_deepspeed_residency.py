"""What leaves the device, what comes back, and what is said when it does not."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from deepspeed_support import OFFLOAD_CASES, Layout, expected_bytes, make_batch
from transformers import AutoModelForCausalLM

from colocate.adapters.deepspeed import wire
from colocate.adapters.deepspeed.client import DeepSpeedTrainer
from colocate.adapters.deepspeed.moves import EmptiedStorages, flat, move_together
from colocate.adapters.deepspeed.processes import CLOSE_GRACE_S, RankDiedError, RankFailedError
from colocate.adapters.deepspeed.residency import (
    RESIDUE_BYTES,
    StillHeldError,
    check_back,
    check_conserved,
    check_freed,
    check_gone,
    count_bytes,
)
from colocate.config import AlgorithmConfig, EmbeddedModelConfig, TrainerConfig
from colocate.core.types import TRAINER_PARTS, Part
from colocate.embedded.model import build_embedded_model
from tests.patience import patient

TOLD_WITHIN_S = 20


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    return build_embedded_model(
        tmp_path_factory.mktemp("model"),
        EmbeddedModelConfig(hidden_size=48, intermediate_size=64, initializer_range=0.1),
        seed=3,
        dtype="float32",
        max_model_len=96,
    )


@pytest.fixture(scope="module")
def cycles(model, tmp_path_factory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("cycles")
    program = Path(__file__).with_name("offload_cycles.py")
    done = subprocess.run(
        [sys.executable, program, model, folder, folder / "results.json"],
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    return json.loads((folder / "results.json").read_text())


@pytest.mark.engine
@pytest.mark.parametrize("case", OFFLOAD_CASES)
def test_offloading_in_any_order_between_steps_changes_no_bit_of_any_later_step(cycles, case):
    result = cycles[case]
    assert len(set(result["losses"])) == len(result["losses"]) > 4
    assert result["cycled_losses"] == result["losses"]
    assert result["differ"] == []


@pytest.mark.engine
@pytest.mark.parametrize("case", OFFLOAD_CASES)
def test_a_cycle_brings_back_every_byte_and_no_new_key_of_any_state(cycles, case):
    assert cycles[case]["moved"] == []


@pytest.mark.engine
@pytest.mark.parametrize("case", OFFLOAD_CASES)
def test_no_tensor_of_the_training_state_is_left_out_of_the_count(cycles, case):
    assert cycles[case]["unaccounted"] == []


@pytest.mark.engine
@pytest.mark.parametrize(
    "case", [case for case, (_, dtype, _) in OFFLOAD_CASES.items() if "32" in dtype]
)
def test_one_ranks_parts_take_the_bytes_that_arithmetic_gives_them(cycles, case, model):
    weights = AutoModelForCausalLM.from_pretrained(model).parameters()
    layout = Layout(zero_stage=OFFLOAD_CASES[case][0], num_ranks=1)
    sizes = [weight.numel() for weight in weights]
    assert cycles[case]["parts"] == expected_bytes(layout, sizes, num_moments=2)


@pytest.mark.engine
@pytest.mark.parametrize(
    "case", [case for case, (_, dtype, _) in OFFLOAD_CASES.items() if "16" in dtype]
)
def test_in_bfloat16_weights_take_half_and_the_optimizer_keeps_float32(cycles, case):
    half, whole = cycles[case]["parts"], cycles["zero1-float32"]["parts"]
    assert half["parameters"] * 2 == whole["parameters"]
    assert half["reference"] * 2 == whole["reference"]
    # On the host DeepSpeed's ZeRO 2 keeps the new weights once more on their way to the device.
    staged = half["parameters"] if case == "zero2-bfloat16-optimizer-on-host" else 0
    assert half["optimizer"] - staged == whole["optimizer"]


@pytest.mark.engine
async def test_a_rank_that_dies_or_hangs_while_it_offloads_is_named_or_ended(model, tmp_path):
    dying = Layout(zero_stage=3, num_ranks=2).trainer(model, tmp_path / "a", run_id="dying")
    hanging = Layout(zero_stage=1, num_ranks=1).trainer(model, tmp_path / "b", run_id="hanging")
    try:
        await asyncio.gather(dying.start(), hanging.start())
        with pytest.raises(ValueError, match="a trainer has no kv_cache"):
            await dying.offload({Part.KV_CACHE, Part.GRADIENTS})
        await dying.train(make_batch(0))

        victim = dying.process_ids()[1]
        os.kill(victim, signal.SIGSTOP)
        offloading = asyncio.create_task(dying.offload(TRAINER_PARTS))
        await asyncio.sleep(1)
        assert not offloading.done()
        os.kill(victim, signal.SIGKILL)
        async with asyncio.timeout(patient(TOLD_WITHIN_S)):
            with pytest.raises(RankDiedError, match=rf"rank 1 \(process {victim}\) died"):
                await offloading

        [stopped] = hanging.process_ids()
        os.kill(stopped, signal.SIGSTOP)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1):
                await hanging.offload(TRAINER_PARTS)
        with pytest.raises(RankFailedError, match="unknown since an earlier failure"):
            await hanging.load()
        began = time.monotonic()
        await hanging.close()
        assert time.monotonic() - began < CLOSE_GRACE_S + patient(5)
        assert not psutil.pid_exists(stopped)
    finally:
        await asyncio.gather(dying.close(), hanging.close())


class AnsweringPool:
    """Stands for ranks on GPUs, which answer what ranks on CPU never can."""

    def __init__(self, *answers: list[wire.Reply]) -> None:
        self._answers = iter(answers)

    async def ask(self, request: wire.Message) -> list[wire.Reply]:
        return next(self._answers)


def trainer_on_gpus(folder: Path, pool: AnsweringPool) -> DeepSpeedTrainer:
    trainer = DeepSpeedTrainer(
        folder,
        TrainerConfig(num_ranks=2),
        AlgorithmConfig(group_size=2, groups_per_step=1),
        dtype="bfloat16",
        temperature=1.0,
        steps=1,
        seed=0,
        device="cuda",
        log_dir=folder,
        run_id="answered",
    )
    trainer._pool = pool  # type: ignore[assignment]
    return trainer


async def test_a_rank_whose_device_still_holds_bytes_is_named_and_can_be_asked_again(tmp_path):
    pool = AnsweringPool(
        [wire.Done(), wire.FellShort(message="offload: cuda:1 still holds 7 bytes")],
        [wire.Done(), wire.Done()],
        [wire.Done(), wire.Done()],
    )
    trainer = trainer_on_gpus(tmp_path, pool)
    with pytest.raises(RuntimeError, match=r"^trainer rank 1: offload: cuda:1 still holds 7 bytes"):
        await trainer.offload(TRAINER_PARTS)
    await trainer.collect()
    await trainer.offload(TRAINER_PARTS)


async def test_of_several_gpus_the_fullest_is_reported_and_host_memory_is_added_up(tmp_path):
    fuller, other = held(parameters=10, optimizer=30), held(parameters=20, optimizer=5)
    replies: list[wire.Reply] = [
        wire.Holdings(device={str(part): n for part, n in each.items()}, host=host)
        for each, host in ((other, 100), (fuller, 1000))
    ]
    trainer = trainer_on_gpus(tmp_path, AnsweringPool(replies, replies))
    assert await trainer.residency() == fuller
    assert await trainer.host_bytes() == 1100


def test_a_storage_is_counted_once_whoever_views_it():
    whole = torch.zeros(100)
    tensors = {
        Part.PARAMETERS: [whole, {"view": (whole[:10], None)}, torch.empty(0)],
        Part.GRADIENTS: [whole[50:], torch.zeros(3, dtype=torch.bfloat16)],
        Part.OPTIMIZER: None,
    }
    assert count_bytes(tensors) == {(Part.PARAMETERS, "cpu"): 400, (Part.GRADIENTS, "cpu"): 6}
    assert [tensor.numel() for tensor in flat(tensors)] == [100, 10, 0, 50, 3]


def test_emptied_buffers_take_nothing_and_come_back_zeroed_under_the_same_views():
    buffer = torch.ones(1000)
    view = buffer[10:20]
    emptied = EmptiedStorages(torch.device("cpu"))
    emptied.empty([view, buffer])
    assert count_bytes({"all": [buffer, view]}) == {}
    emptied.refill()
    assert count_bytes({"all": [buffer, view]}) == {("all", "cpu"): 4000}
    assert float(buffer.abs().sum()) == 0
    view.fill_(2)
    assert float(buffer.sum()) == 20


def test_views_that_move_together_still_see_what_is_written_through_one_another():
    buffer = torch.arange(12.0)
    views = [buffer, buffer[2:8].view(2, 3), buffer[8:], torch.ones(2, dtype=torch.bfloat16)]
    old = buffer.untyped_storage()
    move_together([*views, views[1]], torch.clone)
    assert count_bytes({"all": views}) == {("all", "cpu"): 52}
    assert old.data_ptr() not in {view.untyped_storage().data_ptr() for view in views}
    views[1][1] = 0
    assert buffer.tolist() == [0, 1, 2, 3, 4, 0, 0, 0, 8, 9, 10, 11]
    assert views[2].tolist() == [8, 9, 10, 11]
    assert views[3].tolist() == [1, 1]


def held(**numbers: int) -> dict[Part, int]:
    return {part: numbers.get(part, 0) for part in sorted(TRAINER_PARTS)}


def test_a_part_that_stayed_on_the_device_is_named_with_its_bytes():
    check_gone(held(parameters=10**9, optimizer=RESIDUE_BYTES), {Part.OPTIMIZER}, device="cuda:1")
    with pytest.raises(StillHeldError, match="cuda:1 still holds 5000000 bytes of optimizer;"):
        check_gone(
            held(parameters=10**9, optimizer=5_000_000),
            {Part.OPTIMIZER, Part.GRADIENTS},
            device="cuda:1",
        )


def test_memory_that_a_hidden_reference_keeps_is_told_from_memory_that_was_freed():
    left = {Part.OPTIMIZER: 6_000_000, Part.GRADIENTS: 2_000_000}
    check_freed(8_000_000, left)
    with pytest.raises(StillHeldError, match="refers to the other 2000000"):
        check_freed(6_000_000, left)


def test_on_the_host_a_move_that_loses_or_gains_a_byte_is_an_error():
    before = held(parameters=100, gradients=50, optimizer=300)
    check_conserved(held(parameters=100, optimizer=300), before, leaving={Part.GRADIENTS})
    for now in (held(parameters=100, optimizer=299), held(parameters=101, optimizer=300)):
        with pytest.raises(RuntimeError, match="300 bytes of optimizer, 100 bytes of parameters"):
            check_conserved(now, before, leaving={Part.GRADIENTS})


def test_a_part_that_came_back_smaller_or_larger_is_an_error():
    before = {Part.OPTIMIZER: 5_000_000}
    check_back(held(parameters=1, optimizer=5_000_000), before)
    for now in (3_000_000, 7_000_000):
        with pytest.raises(
            RuntimeError, match=f"holds {now} bytes of optimizer, but before .* 5000"
        ):
            check_back(held(optimizer=now), before)
