"""Advantages: how much better a trajectory did than was to be expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from colocate.config import AlgorithmConfig
from colocate.ports import TrainingSample

Array = npt.NDArray[np.float64]

STD_EPSILON = 1e-4
"""Added to a deviation, so that nearly equal rewards are not blown up."""

MAX_REWARD = float(np.finfo(np.float32).max) / 4
"""In size: within it neither a deviation nor an advantage overflows."""


@dataclass(frozen=True, slots=True)
class Rewards:
    """The rewards (n,) of a batch's trajectories but the masked, and the group (n,) of each."""

    values: Array
    groups: npt.NDArray[np.int64]

    def members(self) -> list[npt.NDArray[np.int64]]:
        """The places of each group's members."""
        return [np.flatnonzero(self.groups == group) for group in np.unique(self.groups)]


def group_mean(rewards: Rewards) -> Array:
    """``r - mean(group)``: Dr. GRPO (arXiv:2503.20783).

    Dividing by the deviation, it argues, gives questions that are nearly always, or nearly never,
    solved too much weight.
    """
    advantages = np.zeros_like(rewards.values)
    for members in rewards.members():
        advantages[members] = _centred(rewards.values[members])
    return advantages


def group_std(rewards: Rewards) -> Array:
    """``(r - mean(group)) / (std(group) + 1e-4)``: GRPO (arXiv:2402.03300, section 4.1.2)."""
    advantages = np.zeros_like(rewards.values)
    for members in rewards.members():
        own = rewards.values[members]
        advantages[members] = _centred(own) / (own.std() + STD_EPSILON)
    return advantages


def batch_std(rewards: Rewards) -> Array:
    """``(r - mean(group)) / (std(batch) + 1e-4)``: Lite PPO (arXiv:2508.08221).

    The deviation is of the rewards of the whole batch. It is one number for all groups, so that
    none gains weight by its rewards lying close together.
    """
    return group_mean(rewards) / (float(rewards.values.std()) + STD_EPSILON)


def leave_one_out(rewards: Rewards) -> Array:
    """``r - mean(others of the group)``: RLOO (arXiv:2402.14740).

    A trajectory has no part in its own baseline, so that the gradient is unbiased. That is
    ``n / (n - 1)`` times ``group_mean``, n being the group's members that are not masked.
    """
    advantages = np.zeros_like(rewards.values)
    for members in rewards.members():
        count = len(members)
        if count > 1:
            advantages[members] = _centred(rewards.values[members]) * (count / (count - 1))
    return advantages


def batch_norm(rewards: Rewards) -> Array:
    """``(r - mean(batch)) / (std(batch) + 1e-4)``: REINFORCE++ (arXiv:2501.03262).

    Without a group's baseline, so that groups of one are possible. (Its "w/ baseline" variant
    takes the group's mean off first; that is ``batch_std``, but for the rewards that the deviation
    is taken of.) Means are over trajectories, where the paper's are over tokens.
    """
    return _centred(rewards.values) / (float(rewards.values.std()) + STD_EPSILON)


ESTIMATORS: Mapping[str, Callable[[Rewards], Array]] = {
    "group_std": group_std,
    "group_mean": group_mean,
    "batch_std": batch_std,
    "leave_one_out": leave_one_out,
    "batch_norm": batch_norm,
}
"""By their name in ``algorithm.advantage``. Deviations are the population's (divided by n)."""


def compute_advantages(
    samples: Sequence[TrainingSample],
    algorithm: AlgorithmConfig,
    *,
    penalties: Sequence[float] | None = None,
) -> list[float]:
    """One advantage for each sample, in their order.

    Masked samples count in no statistic and get 0, so that a group that lost members is compared
    with those it has left. Where what is compared is all equal (a group of one, a group of equal
    rewards; with ``batch_norm`` a batch of equal rewards), it gets exactly 0.

    Args:
        penalties: Taken off the samples' rewards first, one for each.

    Raises:
        ValueError: the reward of a sample that is not masked is not finite, or beyond
            ``MAX_REWARD``.
    """
    rewards = np.array([sample.reward for sample in samples], dtype=np.float64)
    if penalties is not None:
        rewards = rewards - np.asarray(penalties, dtype=np.float64)
    kept = np.flatnonzero([not sample.masked for sample in samples])
    for place in kept:
        _check(samples[place], float(rewards[place]))
    advantages = np.zeros(len(samples))
    if kept.size:
        groups = np.array([samples[place].group for place in kept], dtype=np.int64)
        estimate = ESTIMATORS[algorithm.advantage]
        advantages[kept] = estimate(Rewards(rewards[kept], groups))
    return [float(advantage) for advantage in advantages]


def _check(sample: TrainingSample, reward: float) -> None:
    if math.isfinite(reward) and abs(reward) <= MAX_REWARD:
        return
    least = "" if math.isfinite(reward) else "finite, "
    raise ValueError(
        f"trajectory {sample.trajectory}: its reward must be {least or 'within 8e37, '}but is "
        f"{reward}; mend the reward, or have the environment call the episode invalid"
    )


def _centred(values: Array) -> Array:
    """Values less their mean: exactly 0 where all are equal, however the mean was rounded."""
    if values.min() == values.max():
        return np.zeros_like(values)
    return values - float(values.mean())
