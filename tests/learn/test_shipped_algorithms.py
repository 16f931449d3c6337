"""Each shipped algorithm has what its paper says, and the loss that its paper writes."""

from __future__ import annotations

import statistics

import pytest
import torch
from torch import Tensor

from colocate.cli.compose import plan_jobs
from colocate.cli.train import parse
from colocate.config import AlgorithmConfig, CorrectionConfig
from colocate.learn.advantages import STD_EPSILON, compute_advantages
from colocate.ports import TrainingSample
from colocate.preflight import validate
from tests.learn.shipped import SHIPPED, shipped
from tests.learn.written import Trajectory, found_loss, make_trajectories

REWARDS = [0.0, 1.0, 0.25, 1.0, 3.0]
"""Of one group: the trajectories of ``make_trajectories``."""


def clipped(ratio: Tensor, advantage: float, low: float, high: float) -> Tensor:
    return torch.minimum(ratio * advantage, ratio.clamp(1 - low, 1 + high) * advantage)


def ratios(each: Trajectory) -> Tensor:
    return (each.current - each.proximal).exp()


def weights(each: Trajectory) -> Tensor:
    """Of our own correction: the papers' data are on-policy when the step begins."""
    return (each.proximal - each.behaviour).exp().clamp(max=2.0)


def normalised(rewards: list[float]) -> list[float]:
    mean, deviation = statistics.fmean(rewards), statistics.pstdev(rewards) + STD_EPSILON
    return [(reward - mean) / deviation for reward in rewards]


def centred(rewards: list[float]) -> list[float]:
    return [reward - statistics.fmean(rewards) for reward in rewards]


def others(rewards: list[float]) -> list[float]:
    return [r - (sum(rewards) - r) / (len(rewards) - 1) for r in rewards]


def grpo(made: list[Trajectory], rewards: list[float]) -> Tensor:
    """arXiv:2402.03300, equation 3, without its KL term."""
    per_sequence = [
        (weights(each) * clipped(ratios(each), a, 0.2, 0.2)).sum() / len(each.current)
        for each, a in zip(made, normalised(rewards), strict=True)
    ]
    return -sum(per_sequence) / len(made)


def token_mean(made: list[Trajectory], rewards: list[float], high: float) -> Tensor:
    """arXiv:2503.14476, equation 8."""
    tokens = [
        weights(each) * clipped(ratios(each), a, 0.2, high)
        for each, a in zip(made, normalised(rewards), strict=True)
    ]
    return -torch.cat(tokens).sum() / sum(map(len, tokens))


def dr_grpo(made: list[Trajectory], rewards: list[float]) -> Tensor:
    """arXiv:2503.20783, listing 1: the budget is the longest that can be generated, 2 x 6."""
    total = sum(
        (weights(each) * clipped(ratios(each), a, 0.2, 0.2)).sum()
        for each, a in zip(made, centred(rewards), strict=True)
    )
    return -total / (len(made) * 12)


def gspo(made: list[Trajectory], rewards: list[float]) -> Tensor:
    """arXiv:2507.18071, equations 5 and 7."""
    total = torch.zeros((), dtype=torch.float64)
    for each, a in zip(made, normalised(rewards), strict=True):
        length = len(each.current)
        ratio = (each.current.sum() - each.proximal.sum()).exp() ** (1 / length)
        weight = (each.proximal.sum() - each.behaviour.sum()).exp() ** (1 / length)
        total = total + weight.clamp(max=2.0) * clipped(ratio, a, 3e-4, 4e-4)
    return -total / len(made)


def cispo(made: list[Trajectory], rewards: list[float]) -> Tensor:
    """arXiv:2506.13585, equations 4 and 5, with no lower bound and an upper one of 5."""
    tokens = [
        weights(each) * ratios(each).detach().clamp(max=5.0) * a * each.current
        for each, a in zip(made, normalised(rewards), strict=True)
    ]
    return -torch.cat(tokens).sum() / sum(map(len, tokens))


def rloo(made: list[Trajectory], rewards: list[float]) -> Tensor:
    """arXiv:2402.14740, equation 8: of the probability of whole sequences."""
    total = sum(
        (a * weights(each) * each.current).sum()
        for each, a in zip(made, others(rewards), strict=True)
    )
    return -total / len(made)


PAPERS = {
    "grpo": grpo,
    "grpo_token_mean": lambda made, rewards: token_mean(made, rewards, 0.2),
    "dr_grpo": dr_grpo,
    "dapo": lambda made, rewards: token_mean(made, rewards, 0.28),
    "gspo": gspo,
    "cispo": cispo,
    "rloo": rloo,
    # One group is the whole batch here.
    "reinforce_pp": grpo,
}


def test_every_shipped_algorithm_is_tried():
    assert set(PAPERS) == set(SHIPPED)


@pytest.mark.parametrize("name", SHIPPED)
def test_loss_and_gradient_are_those_of_the_paper(name):
    made = make_trajectories(seed=8, spread=0.4)
    samples = [
        TrainingSample(
            trajectory=place,
            group=0,
            token_ids=[],
            loss_mask=[],
            logprobs=[],
            versions=[],
            reward=reward,
        )
        for place, reward in enumerate(REWARDS)
    ]
    for each, advantage in zip(made, compute_advantages(samples, shipped(name)), strict=True):
        each.advantage = advantage
    leaves = [each.current for each in made]
    found, expected = found_loss(made, shipped(name)), PAPERS[name](made, REWARDS)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(
        torch.autograd.grad(found, leaves), torch.autograd.grad(expected, leaves), rtol=1e-9, atol=0
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_penalty_and_bonus_are_off_and_the_correction_is_on(name):
    algorithm = shipped(name)
    assert (algorithm.kl.coef, algorithm.entropy_coef) == (0, 0)
    assert (algorithm.correction.objective, algorithm.correction.mode) == ("decoupled", "truncate")
    assert algorithm.correction.level == ("geometric" if name == "gspo" else "token")


@pytest.mark.parametrize(
    ("name", "estimator", "placement"),
    [("grpo", "k3", "loss"), ("rloo", "k1", "reward"), ("reinforce_pp", "k1", "reward")],
)
def test_a_penalty_that_is_put_on_is_placed_as_in_the_paper(name, estimator, placement):
    kl = shipped(name, "algorithm.kl.coef=0.04").kl
    assert (kl.coef, kl.estimator, kl.placement) == (0.04, estimator, placement)


def test_the_quickstart_trains_the_mean_over_tokens_with_ppos_clip_and_truncated_weights():
    (job,) = plan_jobs(parse(["+experiment=quickstart", "device=cpu"])).jobs
    assert validate(job.tree).algorithm == AlgorithmConfig(
        group_size=32,
        groups_per_step=10,
        advantage="group_std",
        ratio="token",
        surrogate="clip",
        clip_low=0.2,
        clip_high=0.2,
        aggregation="token_mean",
        entropy_coef=0.02,
        correction=CorrectionConfig(objective="decoupled", level="token", mode="truncate", cap=2.0),
    )


@pytest.mark.parametrize("name", SHIPPED)
def test_the_quickstart_takes_any_shipped_algorithm_whole(name):
    """The experiment sets sizes and the bonus; what makes the algorithm stays the algorithm's."""
    own = {"group_size", "groups_per_step", "entropy_coef", "length_budget"}
    of_quickstart = shipped(name, "+experiment=quickstart", "rollout.max_turns=2")
    assert of_quickstart.model_dump(exclude=own) == shipped(name).model_dump(exclude=own)
