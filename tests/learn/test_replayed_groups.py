"""A replayed group among others: its own advantages, its own weights, figures of its own."""

from __future__ import annotations

import dataclasses
import math
import statistics

import pytest
import torch

from colocate.config import AlgorithmConfig, CorrectionConfig
from colocate.learn.advantages import STD_EPSILON, compute_advantages
from colocate.learn.batches import collate, make_rows
from colocate.learn.losses import PolicyLoss, Scores
from colocate.learn.metrics import batch_metrics
from colocate.ports import TrainingBatch, TrainingSample

VERSION = 9
ALGORITHM = AlgorithmConfig(group_size=2, groups_per_step=2)


def a_sample(
    trajectory: int, group: int, reward: float, versions: list[int], **changes: object
) -> TrainingSample:
    """One prompt token, then one token by each of these versions."""
    count = len(versions)
    sample = TrainingSample(
        trajectory=trajectory,
        group=group,
        token_ids=[1] * (1 + count),
        loss_mask=[0] + [1] * count,
        logprobs=[0.0] + [-1.0 - 0.1 * trajectory - 0.01 * place for place in range(count)],
        versions=[-1, *versions],
        reward=reward,
    )
    return dataclasses.replace(sample, **changes)  # type: ignore[arg-type]


OWN = [a_sample(20, 7, 0.0, [9, 9]), a_sample(21, 7, 1.0, [8, 9])]
REPLAYED = [a_sample(2, 1, 5.0, [4, 5, 5], origin=0), a_sample(3, 1, 9.0, [5], origin=0)]
BATCH = TrainingBatch(batch=8, version=VERSION, samples=[*OWN, *REPLAYED])


@pytest.mark.parametrize("advantage", ["group_std", "group_mean", "leave_one_out"])
def test_a_replayed_group_is_compared_with_itself_alone(advantage: str) -> None:
    algorithm = AlgorithmConfig(group_size=2, groups_per_step=2, advantage=advantage)
    found = compute_advantages(BATCH.samples, algorithm)
    alone = compute_advantages(OWN, algorithm) + compute_advantages(REPLAYED, algorithm)
    assert found == alone
    deviation = {"group_std": 2.0 + STD_EPSILON, "group_mean": 1.0, "leave_one_out": 0.5}
    assert found[2:] == pytest.approx([-2 / deviation[advantage], 2 / deviation[advantage]])


def test_its_tokens_keep_their_versions_and_the_weights_of_the_policy_that_sampled() -> None:
    algorithm = with_correction(CorrectionConfig(cap=1.9))
    advantages = compute_advantages(BATCH.samples, algorithm)
    rows = make_rows(BATCH.samples, advantages)
    micro_batch = collate(rows, device=torch.device("cpu"))
    assert micro_batch.versions.tolist() == [9, 9, 8, 9, 4, 5, 5, 5]
    proximal = torch.linspace(-3.0, -1.0, 8)
    terms = PolicyLoss.of(algorithm)(
        Scores(
            current=proximal,
            proximal=proximal,
            behaviour=micro_batch.behaviour_logprobs,
            entropy=0 * proximal,
            reference=None,
        ),
        micro_batch.advantages,
        micro_batch.sequences,
    )
    behaviour = [logprob for sample in BATCH.samples for logprob in sample.logprobs[1:]]
    expected = [
        min(math.exp(float(new) - old), 1.9) for new, old in zip(proximal, behaviour, strict=True)
    ]
    assert terms.correction.weight.tolist() == pytest.approx(expected, rel=1e-5)
    assert len(set(expected)) > 4


def with_correction(correction: CorrectionConfig) -> AlgorithmConfig:
    return ALGORITHM.model_copy(update={"correction": correction})


def test_replayed_tokens_have_a_lag_of_their_own_and_no_part_in_that_of_the_others() -> None:
    metrics = batch_metrics(BATCH, [0.0] * 4)
    alone = batch_metrics(dataclasses.replace(BATCH, samples=OWN), [0.0] * 2)
    for name in ("lag_mean", "lag_max", "reward_mean", "reward_std", "reward_min", "reward_max"):
        assert metrics[name] == alone[name], name
    assert (metrics["lag_mean"], metrics["lag_max"]) == (0.25, 1.0)
    assert metrics["replay_lag_mean"] == statistics.fmean([5, 4, 4, 4])
    assert metrics["replay_lag_max"] == 5
    assert (metrics["num_sequences"], metrics["num_replayed"]) == (4, 2)
    assert metrics["group_version_spread_max"] == alone["group_version_spread_max"]
    assert not any(name.startswith("replay_lag") for name in alone)


def test_a_batch_of_replays_alone_has_no_reward_and_no_lag_of_its_own() -> None:
    metrics = batch_metrics(dataclasses.replace(BATCH, samples=REPLAYED), [-1.0, 1.0])
    assert not [name for name in metrics if name.startswith(("reward", "lag", "group_version"))]
    assert metrics["num_replayed"] == metrics["num_sequences"] == 2
    assert all(math.isfinite(value) for value in metrics.values())
