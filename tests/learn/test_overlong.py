"""The soft overlong punishment against equation 13 of its paper."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.config import AlgorithmConfig, OverlongConfig
from colocate.learn.advantages import compute_advantages
from colocate.learn.metrics import batch_metrics
from colocate.learn.overlong import overlong_penalties, overlong_penalty
from colocate.ports import TrainingBatch, TrainingSample
from tests.learn.shipped import shipped


def sample(num_sampled: int, num_observed: int = 0, *, reward: float = 1.0) -> TrainingSample:
    length = 1 + num_observed + num_sampled
    return TrainingSample(
        trajectory=0,
        group=0,
        token_ids=[5] * length,
        loss_mask=[0] * (1 + num_observed) + [1] * num_sampled,
        logprobs=[0.0] * length,
        versions=[-1] * (1 + num_observed) + [0] * num_sampled,
        reward=reward,
    )


def written(length: int, longest: int, cache: int) -> float:
    """arXiv:2503.14476, equation 13: what is added to the reward."""
    if length <= longest - cache:
        return 0.0
    if length <= longest:
        return ((longest - cache) - length) / cache
    return -1.0


@given(st.data(), st.integers(1, 400))
def test_it_is_equation_13_of_the_paper(data: st.DataObject, longest: int) -> None:
    cache = data.draw(st.integers(1, longest))
    length = data.draw(st.integers(0, 2 * longest))
    overlong = OverlongConfig(mode="shape", max_length=longest, cache_length=cache)
    assert overlong_penalty(length, overlong) == pytest.approx(-written(length, longest, cache))


def test_tokens_of_tools_and_prompts_are_nobodys_length() -> None:
    overlong = OverlongConfig(mode="shape", max_length=10, cache_length=4)
    samples = [sample(3, num_observed=5000), sample(8, num_observed=5000), sample(8)]
    assert overlong_penalties(samples, overlong) == [0.0, 0.5, 0.5]


def test_a_cache_that_is_not_given_is_the_papers_share_and_a_penalty_scales() -> None:
    paper = OverlongConfig(mode="shape", max_length=20_480)
    assert paper.cache_tokens == 4096
    half = OverlongConfig(mode="shape", max_length=10, cache_length=4, penalty=0.5)
    assert overlong_penalty(20, half) == 0.5


@pytest.mark.parametrize("mode", ["keep", "mask"])
def test_nothing_is_taken_off_where_rewards_are_not_shaped(mode: str) -> None:
    assert overlong_penalties([sample(100)], OverlongConfig(mode=mode, max_length=10)) is None


def test_advantages_see_the_shaped_reward_and_metrics_the_environments() -> None:
    algorithm = AlgorithmConfig(
        group_size=2,
        groups_per_step=1,
        advantage="group_mean",
        overlong=OverlongConfig(mode="shape", max_length=10, cache_length=4),
    )
    samples = [sample(4), sample(10)]
    penalties = overlong_penalties(samples, algorithm.overlong)
    advantages = compute_advantages(samples, algorithm, penalties=penalties)
    assert advantages == [0.5, -0.5]
    metrics = batch_metrics(TrainingBatch(batch=0, version=0, samples=samples), advantages)
    assert metrics["reward_mean"] == metrics["reward_min"] == 1.0


def test_dapo_shapes_up_to_what_a_trajectory_can_sample() -> None:
    overlong = shipped("dapo").overlong
    assert (overlong.mode, overlong.max_length, overlong.cache_tokens) == ("shape", 12, 2)
    assert shipped("grpo").overlong.mode == "keep"
