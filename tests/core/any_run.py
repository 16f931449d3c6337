"""The settings of any run: whatever chooses, Hypothesis or a random number generator, may choose.

Hypothesis shrinks what it finds, but prefers small choices and short plays; uniform chance is
quicker and finds what takes many unlikely facts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

from colocate.core.settings import Settings
from colocate.core.types import TrajectoryId
from tests.core.world import World

Pick = Callable[[Sequence[Any]], Any]
"""Chooses one of several; the first is the plainest."""

FAIR_REWARDS: dict[str, Callable[[TrajectoryId], int]] = {
    "equal": lambda _: 0,
    "spread": lambda trajectory: trajectory % 2,
    "sometimes equal": lambda trajectory: (trajectory // 4) % 2 * trajectory % 2,
}


POLICIES = ["interval", "timed", "drain", "adaptive"]


def _of_flat_groups(pick: Pick, *, replays: bool) -> dict[str, Any]:
    """Replay, dynamic sampling, or neither; only the first where ``replays``."""
    what = "replay" if replays else pick(["train", "replay", "resample"])
    if what == "train":
        return {}
    if what == "resample":
        limit = pick([None, 1, 2, 3])
        return {"dynamic_sampling": True, "dynamic_sampling_max_groups": limit}
    return {
        "replay_groups": pick([1, 2, 3]),
        "replay_min_std": pick([0.0, 0.4, 2.0]),
        "replay_min_mean": pick([-1.0, 0.4, 3.0]),
        "replay_max_staleness": pick(range(1, 7)),
        "replay_max_uses": pick([1, 2, 3]),
    }


def any_settings(pick: Pick, *, replays: bool) -> Settings:
    """Any, or, to look closer at replay, such as replay and have no spares."""
    spares = [0] if replays else [0, 1, 2]
    max_staleness = pick(range(6))
    return Settings(
        steps=pick(range(1, 9)),
        group_size=pick([1, 2, 3]),
        groups_per_step=pick([1, 2]),
        max_staleness=max_staleness,
        policy=pick(POLICIES),
        swap_interval=pick(range(1, max_staleness + 2)),
        period_s=pick([0.5, 5.0]),
        warmup_swaps=pick([0, 1, 2, 3]),
        expiry_grace_s=pick([0.0, 3.0]),
        max_inflight=pick([None, 1, 2, 3, 4]),
        on_stale=pick(["expire", "restart"]),
        max_filtered_fraction=1.0,
        redundant_per_group=pick(spares),
        redundant_groups=pick(spares),
        spare_groups=pick(["cancel", "carry"]),
        sleep=pick(["auto", "0", "kv", "1", "2"]),
        keep_best=pick([False, True]),
        eval_every_steps=pick([0, 1, 2, 3]),
        eval_before_first_step=pick([False, True]),
        eval_num_samples=pick([1, 2, 3]),
        checkpoint_every_steps=pick([0, 1, 2]),
        checkpoint_every_s=pick([0.0, 0.0, 40.0]),
        **_of_flat_groups(pick, replays=replays),
    )


def with_losses(settings: Settings, pick: Pick, limit: int) -> Settings:
    """The same, of a run that may lose its processes so often."""
    return dataclasses.replace(
        settings, max_restarts=limit, restart_window_s=1e9, verify_every=pick([0, 1])
    )


def any_world(chance: Random, *, replays: bool = False, num_losses: int = 0) -> World:
    run = with_losses(any_settings(chance.choice, replays=replays), chance.choice, num_losses)
    rewards = FAIR_REWARDS[chance.choice(sorted(FAIR_REWARDS))]
    return World(run, fair_reward=rewards, num_losses=num_losses)


def play_by_chance(world: World, chance: Random, num_facts: int) -> None:
    """Any fact as likely as any other, or those that the world names first likelier."""
    preference = chance.choice([None, 0.5, 1.0, 3.0])
    for _ in range(num_facts):
        facts = world.possible()
        if world.is_over or not facts:
            return
        chosen = chance.randrange(len(facts))
        if preference is not None:
            chosen = min(len(facts) - 1, int(chance.expovariate(preference)))
        facts[chosen](chance.randrange(12))
