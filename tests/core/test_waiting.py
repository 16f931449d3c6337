"""No policy waits for what cannot come, and none is asked for more than can be said."""

from __future__ import annotations

import dataclasses

import pytest

from colocate.core import events as ev
from colocate.core.phases import Phase
from colocate.core.prospects import RolloutView, Stay, Swap
from colocate.core.settings import Settings
from colocate.core.swap_policy import Drain, Interval
from tests.core.world import World


@pytest.mark.parametrize("policy", [Drain(3), Interval(3)])
def test_a_policy_waits_for_as_many_batches_as_can_be_filled(policy: Drain | Interval) -> None:
    view = RolloutView(
        time_s=1.0,
        rollout_started_s=0.0,
        num_ready_batches=2,
        num_fillable_batches=lambda: 2,
        num_unfinished=0,
        num_steps_left=3,
        max_batches=4,
    )
    decision = policy.decide(view)
    assert isinstance(decision, Swap)
    assert decision.num_batches == 2
    assert policy.decide(dataclasses.replace(view, num_fillable_batches=lambda: 3)) == Stay()


@pytest.mark.parametrize("policy", ["drain", "interval"])
def test_a_group_of_which_members_are_masked_takes_a_whole_groups_place(policy: str) -> None:
    settings = Settings(
        steps=6,
        group_size=2,
        groups_per_step=2,
        max_staleness=3,
        policy=policy,
        swap_interval=3,
        max_filtered_fraction=1.0,
    )
    world = World(settings)
    most = 0
    while not world.is_over:
        finished = [i for i, a in world.actors.items() if a.is_acting and a.turns >= 3]
        if finished and finished[0] % 2 == 0:
            world._answer(finished[0], "mask", 0)
        else:
            world.step_fairly()
        most = max(most, world.scheduler.buffer.num_groups)
    assert most == settings.max_resident_groups
    assert world.scheduler.books.steps == settings.steps


def test_a_first_rollout_that_begins_with_ready_batches_is_not_left_unasked() -> None:
    """An environment answers while the engine is replaced: a batch is ready from the beginning."""
    world = World(
        Settings(
            steps=8,
            group_size=1,
            groups_per_step=1,
            max_staleness=3,
            policy="adaptive",
            warmup_swaps=2,
            max_inflight=1,
            max_restarts=1,
            max_filtered_fraction=1.0,
        )
    )
    while world.scheduler.phase is not Phase.ROLLOUT:
        world.step_fairly()
    world._answer(0, "turn", 0)
    world._end_request(0, 3)
    world.take(ev.EngineLost(time_s=world.time_s, error="it died"))
    world._answer(0, "finish", 1)
    while world.scheduler.phase is not Phase.ROLLOUT:
        world._end_operation(0)
    world.finish_fairly()
    assert world.scheduler.books.steps == 8
