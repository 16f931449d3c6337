"""Rows laid end to end score as each alone does, with every architecture that is packed."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor

from colocate.learn.batches import MicroBatch, collate
from colocate.learn.packed_attention import PACKED_ATTENTION
from colocate.learn.packing import PACKABLE_MODEL_TYPES, decide_packing, reason_to_pad
from colocate.learn.scoring import TokenScorer
from tests.learn.models import VOCABULARY, random_row, small_model

CPU = torch.device("cpu")
SETTINGS = {"mistral": {"sliding_window": None}}
ROWS = [random_row(length, seed) for seed, length in enumerate([17, 17, 11, 5, 5, 5, 2])]
WEIGHTS = torch.linspace(-1.0, 1.0, sum(row.num_tokens for row in ROWS))


def scored(kind: str, attention: str, batch: MicroBatch) -> tuple[Tensor, list[Tensor | None]]:
    """Log-probabilities, and the gradient of a weighted sum of them."""
    model = small_model(kind, attention=attention, **SETTINGS.get(kind, {}))
    scorer = TokenScorer(model, temperature=0.8, packed=attention == PACKED_ATTENTION)
    logprobs, _ = scorer(batch, with_entropy=False)
    (logprobs * WEIGHTS).sum().backward()
    return logprobs.detach(), [parameter.grad for parameter in model.parameters()]


@pytest.mark.parametrize("kind", sorted(PACKABLE_MODEL_TYPES))
def test_packed_rows_have_the_scores_and_the_gradient_of_padded_ones(kind):
    padded = scored(kind, "sdpa", collate(ROWS, device=CPU))
    packed = scored(kind, PACKED_ATTENTION, collate(ROWS, device=CPU, packed=True))
    torch.testing.assert_close(packed[0], padded[0], rtol=0, atol=1e-6)
    largest = max(float(g.abs().max()) for g in padded[1] if g is not None)
    torch.testing.assert_close(packed[1], padded[1], rtol=0, atol=1e-6 * largest)


@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_cutting_attention_does_what_transformers_mask_from_positions_does(kind):
    batch = collate(ROWS, device=CPU, packed=True)
    cut = TokenScorer(small_model(kind, attention=PACKED_ATTENTION), temperature=1.0, packed=True)
    masked = TokenScorer(small_model(kind), temperature=1.0)
    torch.testing.assert_close(
        cut(batch, with_entropy=False)[0],
        masked(dataclasses.replace(batch, runs=None), with_entropy=False)[0],
        rtol=0,
        atol=1e-6,
    )


def test_a_row_neither_sees_its_neighbours_nor_is_seen_by_them():
    scorer = TokenScorer(
        small_model("qwen3", attention=PACKED_ATTENTION), temperature=1, packed=True
    )
    changed = [
        dataclasses.replace(row, token_ids=(row.token_ids + 1) % VOCABULARY) if place == 3 else row
        for place, row in enumerate(ROWS)
    ]
    before, after = (
        scorer(collate(rows, device=CPU, packed=True), with_entropy=False)[0]
        for rows in (ROWS, changed)
    )
    of_row = collate(ROWS, device=CPU).sequence_index
    assert torch.equal(before[of_row != 3], after[of_row != 3])
    assert not torch.isclose(before[of_row == 3], after[of_row == 3]).any()


def test_a_packed_micro_batch_is_refused_by_a_model_that_would_not_cut_it():
    scorer = TokenScorer(small_model("qwen3"), temperature=1.0)
    with pytest.raises(ValueError, match="packed micro-batch"):
        scorer(collate(ROWS, device=CPU, packed=True), with_entropy=False)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"model_type": "qwen3"}, None),
        ({"model_type": "qwen3", "layer_types": ["full_attention"] * 2}, None),
        (
            {"model_type": "qwen3", "layer_types": ["full_attention", "sliding_attention"]},
            "sliding_attention",
        ),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, None),
        ({"model_type": "mistral", "sliding_window": 4096}, "sliding window"),
        ({"model_type": "mistral", "sliding_window": None}, None),
        ({"model_type": "qwen3_next"}, "qwen3_next"),
        ({"model_type": "mamba2"}, "mamba2"),
        ({}, "None"),
    ],
)
def test_models_that_mix_tokens_otherwise_are_padded(settings: dict[str, Any], reason: str | None):
    found = reason_to_pad(settings)
    assert (found is None) == (reason is None)
    assert decide_packing("auto", settings) == (reason is None)
    assert not decide_packing(False, settings)
    if reason is None:
        assert decide_packing(True, settings)
    else:
        assert found is not None
        assert reason in found
        with pytest.raises(ValueError, match=r"trainer\.packing=true does not go with this model"):
            decide_packing(True, settings)
