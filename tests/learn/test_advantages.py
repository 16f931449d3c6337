"""Each estimator against plain statistics, and what has nothing to be compared with."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.config import AlgorithmConfig
from colocate.learn.advantages import ESTIMATORS, STD_EPSILON, compute_advantages
from colocate.ports import TrainingSample

EVERY = sorted(ESTIMATORS)
OF_GROUPS = sorted(set(EVERY) - {"batch_norm"})


def sample(trajectory: int, group: int, reward: float, *, masked: bool = False) -> TrainingSample:
    return TrainingSample(
        trajectory=trajectory,
        group=group,
        token_ids=[1, 2],
        loss_mask=[0, 1],
        logprobs=[0.0, -1.0],
        versions=[-1, 0],
        reward=reward,
        masked=masked,
    )


def found(samples, advantage: str, **options) -> list[float]:
    algorithm = AlgorithmConfig(group_size=4, groups_per_step=2, advantage=advantage)
    return compute_advantages(samples, algorithm, **options)


def written(samples, advantage: str) -> list[float]:
    """The formula, from the standard library's statistics."""
    groups = defaultdict(list)
    for each in samples:
        if not each.masked:
            groups[each.group].append(each.reward)
    batch = [reward for rewards in groups.values() for reward in rewards]
    advantages = []
    for each in samples:
        if each.masked:
            advantages.append(0.0)
            continue
        group = groups[each.group]
        centred = each.reward - statistics.fmean(group)
        if advantage == "group_mean":
            advantages.append(centred)
        if advantage == "group_std":
            advantages.append(centred / (statistics.pstdev(group) + STD_EPSILON))
        if advantage == "batch_std":
            advantages.append(centred / (statistics.pstdev(batch) + STD_EPSILON))
        if advantage == "leave_one_out":
            others = list(group)
            others.remove(each.reward)
            advantages.append(each.reward - statistics.fmean(others) if others else 0.0)
        if advantage == "batch_norm":
            deviation = statistics.pstdev(batch) + STD_EPSILON
            advantages.append((each.reward - statistics.fmean(batch)) / deviation)
    return advantages


@pytest.mark.parametrize("advantage", EVERY)
@given(
    members=st.lists(st.tuples(st.integers(0, 3), st.floats(-100, 100), st.booleans()), max_size=20)
)
def test_an_advantage_is_what_plain_statistics_give(advantage, members):
    samples = [
        sample(place, group, reward, masked=masked)
        for place, (group, reward, masked) in enumerate(members)
    ]
    # Where rewards nearly agree, both divide rounding by the small constant.
    assert found(samples, advantage) == pytest.approx(
        written(samples, advantage), rel=1e-9, abs=1e-9
    )


@pytest.mark.parametrize("advantage", EVERY)
def test_the_sum_over_what_is_compared_is_zero(advantage):
    samples = [sample(i, i % 2, reward) for i, reward in enumerate([0, 1, 0.5, 4, 7, -2])]
    assert sum(found(samples, advantage)) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("advantage", OF_GROUPS)
def test_groups_do_not_mix_even_when_their_members_are_interleaved(advantage):
    """A shift of one group's rewards moves nothing, its place in the batch neither."""
    rewards = [(0, 0.0), (1, 10.0), (0, 1.0), (1, 30.0)]
    centred = [(0, -0.5), (1, -10.0), (0, 0.5), (1, 10.0)]
    samples = [sample(i, group, r) for i, (group, r) in enumerate(rewards)]
    shifted = [sample(i, group, r) for i, (group, r) in enumerate(centred)]
    if advantage != "batch_std":
        assert found(samples, advantage) == pytest.approx(found(shifted, advantage))
    assert [math.copysign(1, a) for a in found(samples, advantage)] == [-1, -1, 1, 1]
    backwards = found(list(reversed(samples)), advantage)
    assert list(reversed(backwards)) == pytest.approx(found(samples, advantage))


@pytest.mark.parametrize("advantage", EVERY)
def test_a_masked_member_counts_in_no_statistic_and_gets_nothing(advantage):
    members = [sample(0, 0, 0.0), sample(1, 0, 1.0), sample(2, 1, 5.0), sample(3, 1, 2.0)]
    lost = [sample(4, 0, math.nan, masked=True), sample(5, 1, 1e300, masked=True)]
    assert found([*members, *lost], advantage) == [*found(members, advantage), 0.0, 0.0]


def test_a_group_that_lost_members_is_compared_with_those_it_has_left():
    members = [
        sample(0, 0, 1.0),
        sample(1, 0, 0.0),
        *(sample(i, 0, 9.0, masked=True) for i in (2, 3)),
    ]
    assert found(members, "group_mean") == [0.5, -0.5, 0.0, 0.0]
    assert found(members, "leave_one_out") == [1.0, -1.0, 0.0, 0.0]


@pytest.mark.parametrize("advantage", OF_GROUPS)
@pytest.mark.parametrize("rewards", [[0.3], [0.1 + 0.2] * 3])
def test_a_group_without_variance_gets_exactly_nothing(advantage, rewards):
    flat = [sample(i, 0, r) for i, r in enumerate(rewards)]
    other = [sample(10, 1, 0.0), sample(11, 1, 1.0)]
    assert found([*flat, *other], advantage)[: len(flat)] == [0.0] * len(rewards)


@pytest.mark.parametrize("advantage", EVERY)
@pytest.mark.parametrize("rewards", [[], [0.3], [0.1 + 0.2] * 3])
def test_a_batch_without_variance_gets_exactly_nothing(advantage, rewards):
    flat = [sample(i, i % 2, r) for i, r in enumerate(rewards)]
    assert found(flat, advantage) == [0.0] * len(rewards)


@pytest.mark.parametrize("advantage", EVERY)
def test_a_batch_that_is_masked_whole_gets_nothing(advantage):
    assert found([sample(i, 0, i, masked=True) for i in range(3)], advantage) == [0.0] * 3


def test_with_the_batchs_norm_a_group_of_one_is_compared_with_the_batch():
    lone = [sample(i, i, reward) for i, reward in enumerate([0.0, 1.0])]
    assert found(lone, "batch_norm") == pytest.approx([-1, 1], rel=1e-3)
    assert found(lone, "group_std") == [0.0, 0.0]


@pytest.mark.parametrize("advantage", EVERY)
def test_a_penalty_is_taken_off_the_reward_before_anything_else(advantage):
    samples = [sample(i, i % 2, reward) for i, reward in enumerate([0, 1, 0.5, 4])]
    penalties = [0.5, -0.25, 0.0, 2.0]
    less = [sample(i, i % 2, reward) for i, reward in enumerate([-0.5, 1.25, 0.5, 2.0])]
    assert found(samples, advantage, penalties=penalties) == found(less, advantage)


@pytest.mark.parametrize("advantage", EVERY)
@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_refused_with_its_trajectory_named(advantage, reward):
    with pytest.raises(ValueError, match=r"trajectory 41: its reward must be finite, but is -?\w+"):
        found([sample(40, 0, 0.0), sample(41, 0, reward)], advantage)


@pytest.mark.parametrize("advantage", EVERY)
def test_a_reward_that_would_overflow_is_refused_and_one_just_below_does_not(advantage):
    with pytest.raises(ValueError, match="trajectory 41: its reward must be within 8e37, but is"):
        found([sample(40, 0, 0.0), sample(41, 0, 1e38)], advantage)
    largest = [sample(40, 0, -8e37), sample(41, 0, 8e37), sample(42, 0, 8e37)]
    assert all(abs(each) < 3.4e38 for each in found(largest, advantage))
