"""Whether the rewards of a group tell its members apart: THE definition of a flat group.

Advantages compare the members of a group, so that equal rewards teach nothing. What counts is the
rewards as the environment gave them, before any penalty, of the members that are not masked.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def is_flat(rewards: Sequence[float]) -> bool:
    """Whether all are equal; of one, or of none, they are."""
    return not rewards or min(rewards) == max(rewards)


def has_spread(rewards: Sequence[float], *, min_std: float, min_mean: float) -> bool:
    """Whether population standard deviation and mean are both *above* their thresholds."""
    return (
        not is_flat(rewards)
        and statistics.pstdev(rewards) > min_std
        and statistics.fmean(rewards) > min_mean
    )
