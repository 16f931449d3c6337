"""Adapters under real DeepSpeed: every stage trains the written formula, and publishes the sum."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from deepspeed_support import make_batch, train_plainly
from transformers import AutoModelForCausalLM

from colocate.adapters.deepspeed.consolidate import consolidated_weights
from colocate.config import EmbeddedModelConfig
from colocate.core.types import Part
from colocate.embedded.model import build_embedded_model
from tests.patience import patient

# Nightly until it has been seen to pass as a whole: no machine was quick enough for it yet.
pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("lora_lives.py")
BATCHES = [make_batch(0), make_batch(1, lag=1), make_batch(2, groups=1)]
SCALE = 12.0 / 3
Lives = dict[tuple[str, str, int, bool], dict[str, Any]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_embedded_model(
        tmp_path_factory.mktemp("model"),
        EmbeddedModelConfig(hidden_size=48, intermediate_size=64, initializer_range=0.1),
        seed=3,
        dtype="float32",
        max_model_len=96,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lives")


@pytest.fixture(scope="module")
def lives(model: Path, folder: Path) -> Lives:
    """Of one rank and of two, by their number, type, stage, and whether layers are recomputed."""
    return {
        (str(num_ranks), *case): life
        for num_ranks in (1, 2)
        for case, life in run_ranks(model, folder, num_ranks).items()
    }


def run_ranks(model: Path, folder: Path, num_ranks: int) -> dict[Any, dict[str, Any]]:
    result = folder / f"result{num_ranks}.pt"
    logs = [folder / f"rank{rank}-of-{num_ranks}.log" for rank in range(num_ranks)]
    ranks = []
    for rank, log in enumerate(logs):
        with log.open("w") as output:
            ranks.append(
                subprocess.Popen(
                    [sys.executable, PROGRAM, model, folder, result, str(rank), str(num_ranks)],
                    env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{PROGRAM.parent}"},
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
    return torch.load(result, weights_only=False)


def in_float32(lives: Lives) -> Iterator[tuple[Any, dict[str, Any]]]:
    return ((case, life) for case, life in lives.items() if case[1] == "float32")


def test_adapters_that_do_nothing_yet_publish_the_model_bit_for_bit(lives: Lives, model: Path):
    for case, life in lives.items():
        whole = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, case[1]))
        expected = dict(whole.named_parameters())
        first, *_ = life["published"]
        assert list(first) == list(expected), case
        assert all(torch.equal(first[name], expected[name]) for name in expected), case


def test_only_adapters_are_trained_and_have_optimizer_state(lives: Lives):
    for case, life in lives.items():
        assert len(life["trained"]) == 2 * 4 * 2, case
        assert all(".lora_" in name for name in life["trained"]), case
        shapes = {name: value.shape for name, value in life["published"][0].items()}
        elements = sum(3 * sum(shapes[name]) for name in life["first_factors"])
        num_ranks = int(case[0])
        if case[2] == 0:
            assert life["optimized"] == elements
        else:
            # This rank's master weights, and two moments of each; padding is of a few elements.
            assert abs(life["optimized"] * num_ranks - elements) <= 40, case
            held = life["held"][-1][Part.OPTIMIZER]
            assert abs(held - 3 * 4 * life["optimized"]) <= 64, case


def test_parameters_are_counted_frozen_ones_included(lives: Lives):
    for case, life in lives.items():
        num_ranks, dtype, stage, _ = case
        frozen = sum(value.numel() for value in life["published"][0].values())
        shapes = {name: value.shape for name, value in life["published"][0].items()}
        elements = frozen + sum(3 * sum(shapes[name]) for name in life["first_factors"])
        item = 4 if dtype == "float32" else 2
        share = int(num_ranks) if stage == 3 else 1
        held = life["held"][-1][Part.PARAMETERS]
        assert abs(held - item * elements / share) <= 4 * item * 40, case


def test_every_stage_trains_as_the_written_formula(lives: Lives, model: Path):
    """Two steps with a KL term, whose reference is the model without its adapters, and a third."""
    factors = lives["1", "float32", 0, False]["first_factors"]
    plain = train_plainly(model, BATCHES, first_factors=factors, scale=SCALE)
    for case, life in in_float32(lives):
        assert all(torch.equal(life["first_factors"][name], factors[name]) for name in factors)
        for step, expected in enumerate(plain):
            for name, value in life["published"][step + 1].items():
                torch.testing.assert_close(
                    value.double(),
                    expected.weights[name],
                    rtol=0,
                    atol=3e-5,
                    msg=lambda text, where=(case, step, name): f"{where}: {text}",
                )
        for step, expected in enumerate(plain[:2]):
            assert life["losses"][step] == pytest.approx(expected.loss, rel=1e-4, abs=1e-5)
            assert life["norms"][step] == pytest.approx(expected.grad_norm, rel=1e-3)


def test_each_step_moves_weights_with_adapters_and_no_other_bit(lives: Lives):
    for case, life in lives.items():
        steps = zip(life["published"], life["published"][1:], strict=False)
        for before, after in steps:
            moved = {name for name in after if not torch.equal(before[name], after[name])}
            assert moved == life["first_factors"].keys(), case
            if case[1] == "float32":
                assert max(float((after[n] - before[n]).abs().max()) for n in moved) > 1e-3, case


def test_offloading_changes_no_bit_and_weights_are_published_meanwhile(lives: Lives):
    for case, life in lives.items():
        for published, offloaded in zip(life["published"][1:], life["offloaded"], strict=False):
            assert all(torch.equal(offloaded[name], published[name]) for name in published), case


def test_a_restored_trainer_publishes_the_same_and_goes_on_bit_for_bit(lives: Lives):
    for case, life in lives.items():
        for ours, theirs in zip(life["restored"], life["published"][2:], strict=True):
            assert all(torch.equal(ours[name], theirs[name]) for name in theirs), case
        assert "model.lora={'rank': 3" in life["refusal"], case
        assert "this run has model.lora={'rank': 4" in life["refusal"], case


def test_a_checkpoint_gives_the_merged_model_without_ranks(lives: Lives, folder: Path):
    for (num_ranks, dtype, stage, lean), life in lives.items():
        weights = consolidated_weights(folder / f"{num_ranks}-{dtype}-{stage}-{lean}")
        expected = life["published"][2]
        assert weights.keys() - {"lm_head.weight"} == expected.keys()
        assert torch.equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])
        # In bfloat16 what is published is rounded once, and of rounded factors.
        tolerance = 1e-6 if dtype == "float32" else 2e-2
        for name, value in expected.items():
            torch.testing.assert_close(weights[name], value.float(), rtol=0, atol=tolerance)
