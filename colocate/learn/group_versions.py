"""What it does to a group's baseline that its members were sampled by different weights."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from colocate.ports import TrainingSample


def group_version_metrics(samples: Sequence[TrainingSample]) -> dict[str, float]:
    """Metrics of the versions within groups, of samples that are not masked.

    A member's version is that of its oldest sampled token, as in the definition of staleness, and
    a group's spread is its members' newest version less their oldest. A group is mixed where that
    is not 0. The baseline of a mixed group, the mean of its rewards, is then that of no single
    policy; how much so is told by the distance

        mean reward of all members - mean reward of the members of the newest version

    of which ``baseline_shift_mean`` is the mean over mixed groups (below 0 where old members hold
    baselines down, near 0 where versions differ by chance only), and ``baseline_shift_abs_mean``
    the mean of its size, chance included. Both are in the reward's unit, and absent without a mixed
    group.
    """
    groups: dict[int, list[tuple[int, float]]] = defaultdict(list)
    for sample in samples:
        versions = np.asarray(sample.versions)[np.asarray(sample.loss_mask) == 1]
        if versions.size:
            groups[sample.group].append((int(versions.min()), sample.reward))

    spreads, shifts = [], []
    for members in groups.values():
        newest = max(version for version, _ in members)
        spreads.append(newest - min(version for version, _ in members))
        if spreads[-1]:
            newest_rewards = [reward for version, reward in members if version == newest]
            baseline = np.mean([reward for _, reward in members])
            shifts.append(float(baseline - np.mean(newest_rewards)))
    if not spreads:
        return {}
    metrics = {
        "group_version_spread_mean": float(np.mean(spreads)),
        "group_version_spread_max": float(max(spreads)),
        "mixed_group_fraction": len(shifts) / len(spreads),
    }
    if shifts:
        metrics["baseline_shift_mean"] = float(np.mean(shifts))
        metrics["baseline_shift_abs_mean"] = float(np.mean(np.abs(shifts)))
    return metrics
