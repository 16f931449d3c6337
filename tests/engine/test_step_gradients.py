"""However an optimizer step is spread over stages, ranks and micro-batches, it is the same step."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from colocate.config import EmbeddedModelConfig
from colocate.embedded.model import build_embedded_model
from tests.patience import patient

# Nightly until it has been seen to pass as a whole: no machine was quick enough for it yet.
pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("step_gradients.py")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_embedded_model(
        tmp_path_factory.mktemp("model"),
        EmbeddedModelConfig(hidden_size=48, intermediate_size=64, initializer_range=0.1),
        seed=3,
        dtype="float32",
        max_model_len=96,
    )


def run_ranks(model: Path, folder: Path, num_ranks: int) -> dict[str, Any]:
    result = folder / "result.pt"
    common = [sys.executable, str(PROGRAM), str(model), str(folder / "rendezvous"), str(result)]
    logs = [folder / f"rank{rank}.log" for rank in range(num_ranks)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{PROGRAM.parent}"}
    ranks = []
    for rank, log in enumerate(logs):
        with log.open("w") as output:
            ranks.append(
                subprocess.Popen(
                    [*common, str(rank), str(num_ranks)],
                    env=environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )
    try:
        statuses = [rank.wait(timeout=patient(540)) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert statuses == [0] * num_ranks, "\n".join(log.read_text()[-3000:] for log in logs)
    return torch.load(result)


@pytest.fixture(scope="module")
def results(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """What one rank found, and two together, by number of ranks."""
    return {
        num_ranks: run_ranks(model, tmp_path_factory.mktemp(f"ranks{num_ranks}"), num_ranks)
        for num_ranks in (1, 2)
    }


def test_the_gradient_is_the_same_for_every_stage_split_and_layout(results) -> None:
    """ZeRO 0 to 3, one rank and two, packed and padded, head and layers whole and in parts."""
    ways = {way: found for of in results.values() for way, found in of["gradients"].items()}
    assert len(ways) == 4 * 2 * 2 * (4 + 3)
    _, expected = ways["zero0 ranks1 lean=False packed=False budget=1000000"]
    assert float(expected.norm()) > 0.01
    apart = {
        way: float((gradient - expected).norm() / expected.norm())
        for way, (_, gradient) in ways.items()
    }
    assert {way: error for way, error in apart.items() if not error <= 1e-5} == {}


def test_the_splits_are_of_one_two_four_and_more_accumulation_steps(results) -> None:
    for num_ranks, least in ((1, {1, 2, 4}), (2, {1, 2, 4})):
        counts = {count for count, _ in results[num_ranks]["gradients"].values()}
        assert counts >= least


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_in_bfloat16_updates_that_round_to_nothing_still_add_up(results, stage: int) -> None:
    """Master weights are float32: eight steps, each below what bfloat16 can show, move weights."""
    *masters, published = results[2]["masters"][stage]
    assert all(each.dtype == torch.float32 for each in masters)
    assert published.dtype == torch.bfloat16
    first, last = masters[0], masters[-1]
    # Half a unit in the last place of weights in this range is 1.2e-4, and a step is of 2e-5.
    range_ = (first.abs() > 0.0625) & (first.abs() < 0.125)
    for before, after in itertools.pairwise(masters):
        step = (after - before).abs()[range_]
        assert 0 < float(step.max()) < 5e-5
    assert torch.equal(published, last.bfloat16())
    moved = (published.float() != first)[range_]
    assert moved.any()
