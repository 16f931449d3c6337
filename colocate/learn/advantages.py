"""Group-relative advantages: how much better a trajectory did than its siblings."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from colocate.ports import TrainingSample

STD_EPSILON = 1e-4
"""Added to a group's deviation, so that a nearly flat group is not blown up."""


def group_advantages(samples: Sequence[TrainingSample], *, normalise_std: bool) -> list[float]:
    """One advantage per sample, in their order: ``(r - mean) / (std + 1e-4)`` within its group.

    The outcome-supervised advantage of GRPO (arXiv:2402.03300, section 4.1.2). Without
    ``normalise_std`` it is ``r - mean``, as Dr. GRPO (arXiv:2503.20783) argues: dividing by the
    deviation gives questions that are nearly always, or nearly never, solved too much weight.
    The deviation is the population's (divided by n).

    Masked samples count neither in the mean nor in the deviation and get 0. A group of one, and
    a group of equal rewards, gets exactly 0.

    Raises:
        ValueError: where the reward of a sample that is not masked is not finite.
    """
    members: dict[int, list[int]] = defaultdict(list)
    for index, sample in enumerate(samples):
        if sample.masked:
            continue
        if not math.isfinite(sample.reward):
            raise ValueError(
                f"trajectory {sample.trajectory}: its reward must be finite, but is "
                f"{sample.reward}; mend the reward, or have the environment call the episode "
                f"invalid"
            )
        members[sample.group].append(index)

    advantages = [0.0] * len(samples)
    for indices in members.values():
        rewards = np.array([samples[index].reward for index in indices], dtype=np.float64)
        if rewards.min() == rewards.max():
            continue
        centred = rewards - rewards.mean()
        if normalise_std:
            centred /= rewards.std() + STD_EPSILON
        for index, advantage in zip(indices, centred.tolist(), strict=True):
            advantages[index] = advantage
    return advantages
