"""What the groups were like that a step was made from: how many taught nothing, and all rewards."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from colocate.core.reward_spread import is_flat


@dataclass(slots=True)
class GroupTally:
    """``of_last_step`` are metrics of the step that was trained last, by name."""

    of_last_step: dict[str, float] = field(default_factory=dict)
    _filtered: list[Sequence[float]] = field(default_factory=list)

    def filter(self, rewards: Sequence[float]) -> None:
        """A flat group was given up; it counts for the step that is trained next."""
        self._filtered.append(tuple(rewards))

    def train(self, own: Sequence[Sequence[float]], replaced: Sequence[Sequence[float]]) -> None:
        """A step was trained.

        Args:
            own: Rewards of its groups but the replayed, group by group.
            replaced: Those of the flat groups whose place a replay took.
        """
        filtered, self._filtered = self._filtered, []
        num_kept = sum(map(is_flat, own))
        rewards = [reward for group in (*own, *replaced, *filtered) for reward in group]
        self.of_last_step = {
            "num_flat_groups": float(num_kept + len(replaced) + len(filtered)),
            "num_filtered_groups": float(len(filtered)),
            "num_replaced_groups": float(len(replaced)),
            "sampled_reward_mean": statistics.fmean(rewards),
        }
