"""Importance weights and rejection, by hand on a few tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from colocate.config import CorrectionConfig
from colocate.learn.correction import Correction, correct
from colocate.learn.sequences import Sequences

TWO = Sequences(torch.tensor([0, 0, 1]), torch.tensor([2, 1]))
"""A sequence of two tokens, and one of one."""


def corrected(ratios: list[float], sequences: Sequences = TWO, **fields) -> Correction:
    """``ratios`` are those of the tokens, over the behaviour policy."""
    log_ratios = torch.tensor(ratios, dtype=torch.float64).log()
    return correct(log_ratios, torch.zeros_like(log_ratios), sequences, CorrectionConfig(**fields))


def test_token_weights_are_cut_at_the_cap_and_only_there():
    found = corrected([0.5, 3.0, 2.0], mode="truncate", cap=2.5)
    assert found.weight.tolist() == pytest.approx([0.5, 2.5, 2.0])
    assert found.truncated.tolist() == [False, True, False]
    assert not found.rejected.any()


def test_a_sequence_weight_is_the_product_over_its_tokens_given_to_each():
    found = corrected([0.5, 3.0, 4.0], level="sequence", cap=2.5)
    assert found.weight.tolist() == pytest.approx([1.5, 1.5, 2.5])
    assert found.truncated.tolist() == [False, False, True]


def test_a_geometric_weight_is_the_products_root_by_the_number_of_tokens():
    found = corrected([0.5, 4.0, 4.0], level="geometric", cap=2.5)
    assert found.weight.tolist() == pytest.approx([math.sqrt(2), math.sqrt(2), 2.5])


def test_a_mask_rejects_above_the_cap_and_without_a_floor_nothing_below():
    found = corrected([0.001, 3.0, 2.0], mode="mask", cap=2.5)
    assert found.weight.tolist() == pytest.approx([0.001, 0, 2.0])
    assert found.masked.tolist() == [False, True, False]
    assert not found.truncated.any()


def test_a_masks_floor_rejects_below_it():
    found = corrected([0.4, 3.0, 0.6], mode="mask", cap=2.5, floor=0.5)
    assert found.weight.tolist() == pytest.approx([0, 0, 0.6])


def test_a_mask_of_sequences_rejects_them_whole():
    found = corrected([0.1, 30.0, 2.0], level="sequence", mode="mask", cap=2.5)
    assert found.rejected.tolist() == [True, True, False]


def test_a_band_rejects_sequences_by_their_geometric_mean_whatever_the_weights_are():
    inside = corrected([0.1, 10.0, 1.4], mode="none", band_low=0.9, band_high=1.5)
    assert inside.weight.tolist() == [1, 1, 1]
    outside = corrected([0.5, 1.0, 1.6], mode="none", band_low=0.9, band_high=1.5)
    assert outside.weight.tolist() == [0, 0, 0]
    assert outside.out_of_band.tolist() == [True, True, True]


def test_a_veto_rejects_the_whole_sequence_of_one_impossible_token_and_no_other():
    found = corrected([1e-5, 1.0, 1.0], veto=1e-4)
    assert found.weight.tolist() == [0, 0, 1]
    assert found.vetoed.tolist() == [True, True, False]


def test_a_token_is_rejected_for_each_reason_that_holds():
    found = corrected([1e-5, 3.0, 1.0], mode="mask", cap=2.5, veto=1e-4, band_low=0.9)
    assert found.masked.tolist() == [False, True, False]
    assert found.vetoed.tolist() == found.out_of_band.tolist() == [True, True, False]
    assert found.rejected.tolist() == [True, True, False]


def test_where_the_ratio_carries_the_weight_only_rejection_is_left():
    log_ratios = torch.tensor([0.5, 3.0, 2.0], dtype=torch.float64).log()
    config = CorrectionConfig(mode="mask", cap=2.5)
    found = correct(
        log_ratios, torch.zeros_like(log_ratios), TWO, config, ratio_carries_weight=True
    )
    assert found.weight.tolist() == [1, 0, 1]


def test_weights_bear_no_gradient():
    numerator = torch.zeros(3, requires_grad=True)
    assert not correct(numerator, torch.ones(3), TWO, CorrectionConfig()).weight.requires_grad


LENGTHS = st.lists(st.integers(1, 9), min_size=1, max_size=5)


def sequences_of(lengths: list[int]) -> Sequences:
    counts = torch.tensor(lengths)
    return Sequences(torch.repeat_interleave(torch.arange(len(lengths)), counts), counts)


CONFIGS = st.builds(
    CorrectionConfig,
    objective=st.sampled_from(["decoupled", "plain"]),
    level=st.sampled_from(["token", "sequence", "geometric"]),
    mode=st.sampled_from(["truncate", "mask", "none"]),
    cap=st.floats(1.01, 100),
    floor=st.none() | st.floats(0.01, 0.99),
    band_low=st.none() | st.floats(0.01, 0.99),
    band_high=st.none() | st.floats(1.01, 100),
    veto=st.none() | st.floats(1e-9, 0.99),
)


@given(LENGTHS, CONFIGS, st.integers(0, 1000))
def test_on_policy_every_weight_is_exactly_one_and_nothing_is_rejected(lengths, config, seed):
    sequences = sequences_of(lengths)
    logprobs = -torch.rand(sum(lengths), generator=torch.Generator().manual_seed(seed)) * 20
    found = correct(logprobs, logprobs.clone(), sequences, config)
    assert (found.weight == 1).all()
    assert not (found.rejected | found.truncated).any()


@given(LENGTHS, CONFIGS, st.integers(0, 1000))
def test_no_weight_is_above_the_cap_and_rejected_ones_are_zero(lengths, config, seed):
    sequences = sequences_of(lengths)
    generator = torch.Generator().manual_seed(seed)
    far = torch.randn(2, sum(lengths), generator=generator, dtype=torch.float64) * 5
    found = correct(far[0], far[1], sequences, config)
    assert float(found.weight.max()) <= max(config.cap * (1 + 1e-12), 1)
    assert torch.equal(found.weight == 0, found.rejected)


@given(LENGTHS, st.integers(0, 1000))
def test_sequences_sum_average_and_find_as_a_loop_over_them_does(lengths, seed):
    sequences = sequences_of(lengths)
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(sum(lengths), generator=generator, dtype=torch.float64)
    parts = torch.split(values, lengths)
    torch.testing.assert_close(sequences.total(values), torch.stack([p.sum() for p in parts]))
    torch.testing.assert_close(sequences.mean(values), torch.stack([p.mean() for p in parts]))
    assert sequences.any(values > 0).tolist() == [bool((p > 0).any()) for p in parts]
    assert sequences.all(values > 0).tolist() == [bool((p > 0).all()) for p in parts]
    spread = torch.split(sequences.spread(sequences.total(values)), lengths)
    assert all((given == given[0]).all() for given in spread)
