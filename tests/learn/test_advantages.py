import math

import pytest

from colocate.learn.advantages import group_advantages
from colocate.ports import TrainingSample


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


def test_an_advantage_is_the_distance_from_the_groups_mean_over_its_deviation():
    rewards = [0.0, 1.0, 1.0, 0.5]
    mean = sum(rewards) / 4
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / 4)
    found = group_advantages([sample(i, 7, r) for i, r in enumerate(rewards)], normalise_std=True)
    assert found == pytest.approx([(r - mean) / (std + 1e-4) for r in rewards], rel=1e-12)


def test_without_normalisation_it_is_the_distance_alone():
    found = group_advantages([sample(0, 0, 0.25), sample(1, 0, 0.75)], normalise_std=False)
    assert found == [-0.25, 0.25]


def test_groups_do_not_mix_even_when_their_members_are_interleaved():
    mixed = [sample(0, 0, 0.0), sample(1, 1, 10.0), sample(2, 0, 1.0), sample(3, 1, 30.0)]
    assert group_advantages(mixed, normalise_std=False) == [-0.5, -10.0, 0.5, 10.0]


def test_a_masked_member_counts_in_no_statistic_and_gets_nothing():
    members = [sample(0, 0, 0.0), sample(1, 0, 1.0), sample(2, 0, math.nan, masked=True)]
    assert group_advantages(members, normalise_std=False) == [-0.5, 0.5, 0.0]


@pytest.mark.parametrize("rewards", [[0.3], [0.1 + 0.2] * 3])
def test_a_group_without_variance_gets_exactly_nothing(rewards):
    members = [sample(i, 0, r) for i, r in enumerate(rewards)]
    assert group_advantages(members, normalise_std=True) == [0.0] * len(rewards)


@pytest.mark.parametrize("reward", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_not_finite_is_refused_with_its_trajectory_named(reward):
    with pytest.raises(ValueError, match=r"trajectory 41: its reward must be finite, but is -?\w+"):
        group_advantages([sample(40, 0, 0.0), sample(41, 0, reward)], normalise_std=True)
