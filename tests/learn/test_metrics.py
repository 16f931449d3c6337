"""Metrics of a step: of the loss, over micro-batches and ranks, and of the data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
import torch

from colocate.config import AlgorithmConfig, CorrectionConfig, KlConfig
from colocate.learn.batches import Minibatch, collate
from colocate.learn.losses import PolicyLoss, Scores
from colocate.learn.metrics import Totals, batch_metrics, loss_metrics, loss_totals
from colocate.ports import TrainingBatch, TrainingSample
from tests.learn.written import (
    Trajectory,
    found_loss,
    found_terms,
    make_trajectories,
    written_loss,
)


def algorithm(**changes) -> AlgorithmConfig:
    return AlgorithmConfig(group_size=2, groups_per_step=2, length_budget=9, **changes)


def step_metrics(
    parts: Sequence[Sequence[Trajectory]], chosen: AlgorithmConfig, *, dummies: int = 0
) -> dict[str, float]:
    """Of one mini-batch whose micro-batches these are."""
    totals = Totals()
    aggregation = PolicyLoss.of(chosen).aggregation
    for part in parts:
        terms, batch = found_terms(part, chosen)
        entropy = torch.cat([each.entropy for each in part])
        totals.add(*with_no_mismatch(terms, entropy, batch, aggregation.weights(batch)))
    for _ in range(dummies):
        batch = collate([], device=torch.device("cpu"))
        far = torch.tensor([-9.0])
        scores = Scores(
            current=far,
            proximal=0 * far,
            behaviour=-far,
            entropy=far,
            reference=far if chosen.kl.coef else None,
        )
        terms = PolicyLoss.of(chosen)(scores, batch.advantages, batch.sequences)
        totals.add(*with_no_mismatch(terms, far, batch, aggregation.weights(batch)))
    whole = Minibatch(
        num_tokens=sum(len(each.current) for part in parts for each in part),
        num_sequences=sum(map(len, parts)),
        ranks=(),
    )
    reduced = totals.reduced(lambda values: None, lambda values: None)
    return loss_metrics(reduced, denominator=aggregation.denominator(whole))


def with_no_mismatch(*arguments):
    sums, maxima = loss_totals(*arguments)
    return sums | {"mismatch_tokens": torch.zeros(())}, maxima


EVERYTHING = {
    "kl": KlConfig(coef=0.1),
    "entropy_coef": 0.1,
    "correction": CorrectionConfig(mode="mask", cap=2.5, band_high=3.0, veto=0.05),
}


@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "fixed_length"])
def test_micro_batches_and_dummies_change_no_metric(aggregation):
    made = make_trajectories(seed=0, spread=0.7)
    chosen = algorithm(aggregation=aggregation, dual_clip=1.5, **EVERYTHING)
    whole = step_metrics([made], chosen)
    split = step_metrics([made[:1], made[1:4], made[4:]], chosen, dummies=2)
    assert split == pytest.approx(whole, rel=1e-12)
    assert whole["loss"] == pytest.approx(float(written_loss(made, chosen).detach()))
    assert 0 < whole["rejected_token_fraction"] < 1
    assert whole["clip_fraction_dual"] > 0


def tokens_of(*ratios: float) -> Trajectory:
    """Tokens whose ratios of the proximal over the behaviour policy are these."""
    zero = torch.zeros(len(ratios), dtype=torch.float64)
    return Trajectory(
        current=zero.clone().requires_grad_(),
        proximal=zero,
        behaviour=-torch.tensor(ratios, dtype=torch.float64).log(),
        reference=zero,
        entropy=zero,
        advantage=1.0,
    )


def test_what_is_rejected_is_counted_by_token_by_reason_and_by_sequence():
    made = [tokens_of(1.0, 3.0), tokens_of(1e-6, 1.0), tokens_of(1.9, 1.9, 1.9), tokens_of(1.0)]
    correction = CorrectionConfig(mode="mask", cap=2.0, band_high=1.8, veto=1e-4)
    metrics = step_metrics([made], algorithm(correction=correction))
    assert metrics["rejected_by_mask_fraction"] == 1 / 8
    assert metrics["rejected_by_veto_fraction"] == 2 / 8
    assert metrics["rejected_by_band_fraction"] == 3 / 8
    assert metrics["rejected_token_fraction"] == 6 / 8
    assert metrics["rejected_sequence_fraction"] == 2 / 4
    assert metrics["importance_weight_mean"] == 2 / 8
    assert metrics["importance_weight_truncated_fraction"] == 0


@pytest.mark.parametrize(
    ("aggregation", "expected"),
    [("token_mean", -2 / 6), ("sequence_mean", -1 / 2), ("fixed_length", -2 / 18)],
)
def test_a_rejected_token_counts_in_what_the_loss_is_divided_by(aggregation, expected):
    """Two tokens of a loss of -1 each are kept; four, of another sequence, are rejected."""
    made = [tokens_of(1.0, 1.0), tokens_of(9.0, 9.0, 9.0, 9.0)]
    chosen = algorithm(aggregation=aggregation, correction=CorrectionConfig(mode="mask"))
    assert found_loss(made, chosen).item() == pytest.approx(expected)
    metrics = step_metrics([made], chosen)
    assert metrics["loss"] == pytest.approx(expected)
    assert metrics["num_tokens"] == 6


def a_sample(reward: float, *versions: int, group: int = 0, masked: bool = False) -> TrainingSample:
    """One prompt token, then one token sampled by each version."""
    return TrainingSample(
        trajectory=0,
        group=group,
        token_ids=[1] * (1 + len(versions)),
        loss_mask=[0] + [1] * len(versions),
        logprobs=[0.0] + [-1.0] * len(versions),
        versions=[-1, *versions],
        reward=reward,
        masked=masked,
    )


def data_metrics(*samples: TrainingSample, version: int = 9) -> dict[str, float]:
    batch = TrainingBatch(batch=0, version=version, samples=list(samples))
    return batch_metrics(batch, [0.0] * len(samples))


def test_the_shift_of_a_baseline_is_its_distance_from_the_newest_members_mean():
    """Two groups are mixed: in one, old members hold the baseline down by 1/4, in one up by 1/8."""
    metrics = data_metrics(
        *(a_sample(reward, 9) for reward in (1.0, 0.5)),
        *(a_sample(reward, 7, 9) for reward in (0.5, 0.0)),
        *(a_sample(0.25, 8, group=1), a_sample(0.5, 7, group=1)),
        *(a_sample(0.0, 9, group=2), a_sample(1.0, 9, group=2)),
    )
    assert metrics["group_version_spread_mean"] == pytest.approx((2 + 1 + 0) / 3)
    assert metrics["group_version_spread_max"] == 2
    assert metrics["mixed_group_fraction"] == pytest.approx(2 / 3)
    assert metrics["baseline_shift_mean"] == pytest.approx((-0.25 + 0.125) / 2)
    assert metrics["baseline_shift_abs_mean"] == pytest.approx((0.25 + 0.125) / 2)


def test_without_a_mixed_group_there_is_no_shift_to_report():
    metrics = data_metrics(a_sample(1.0, 9), a_sample(0.0, 9), a_sample(0.0, 8, group=1))
    assert metrics["mixed_group_fraction"] == 0
    assert not any(name.startswith("baseline_shift") for name in metrics)


def test_a_masked_member_is_in_no_metric_but_its_count():
    kept = [a_sample(1.0, 9), a_sample(0.0, 8)]
    lost = [a_sample(math.nan, 1, masked=True), a_sample(50.0, masked=True)]
    whole = data_metrics(*kept, *lost)
    assert whole == {**data_metrics(*kept), "num_masked": 2}


def test_rewards_are_reported_as_they_were_given():
    metrics = data_metrics(a_sample(1.0, 9), a_sample(0.25, 9), a_sample(0.25, 9, group=1))
    assert metrics["reward_mean"] == pytest.approx(0.5)
    assert (metrics["reward_min"], metrics["reward_max"]) == (0.25, 1.0)
    assert metrics["flat_group_fraction"] == 0.5
    assert (metrics["lag_mean"], metrics["lag_max"]) == (0, 0)
