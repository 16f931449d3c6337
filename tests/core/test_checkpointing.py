"""When checkpoints are due: by steps, by time, and at the end."""

from __future__ import annotations

import pytest

from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.checkpointing import CheckpointSchedule
from colocate.core.types import Version
from tests.core.test_scheduler import small
from tests.core.world import World


@pytest.mark.parametrize(
    ("every_steps", "every_s", "expected"),
    [(0, 0.0, [12]), (4, 0.0, [4, 8, 12]), (0, 25.0, [3, 6, 9, 12]), (5, 25.0, [3, 5, 8, 10, 12])],
)
def test_a_checkpoint_is_due_after_so_many_steps_or_so_much_time(
    every_steps: int, every_s: float, expected: list[int]
) -> None:
    settings = small(steps=12, checkpoint_every_steps=every_steps, checkpoint_every_s=every_s)
    schedule = CheckpointSchedule(settings)
    schedule.begin(Version(0), 0.0)
    written = []
    for step in range(1, 13):  # ten seconds each
        if schedule.is_due(Version(step), 1, 10.0 * step):
            schedule.written(Version(step), 10.0 * step)
            written.append(step)
    assert written == expected


def test_a_swap_that_crosses_a_multiple_leaves_one() -> None:
    schedule = CheckpointSchedule(small(steps=12, checkpoint_every_steps=4))
    assert schedule.is_due(Version(5), 2, 0.0)  # 4 and 5 were trained in it
    assert not schedule.is_due(Version(7), 2, 0.0)


def test_what_a_life_goes_on_from_need_not_be_written_again_so_soon() -> None:
    schedule = CheckpointSchedule(small(steps=12, checkpoint_every_s=60.0))
    schedule.begin(Version(3), 100.0)
    assert not schedule.is_due(Version(4), 1, 159.0)
    assert schedule.is_due(Version(5), 1, 160.0)


def test_each_swap_of_a_run_obeys_the_time_since_the_checkpoint_before() -> None:
    every_s = 30.0
    world = World(small(steps=8, max_staleness=0, checkpoint_every_s=every_s))
    world.finish_fairly()
    last_s, due = 0.0, []
    for event, actions in world.lines:
        if isinstance(event, ev.CheckpointWritten):
            last_s = event.time_s
        for action in actions:
            if isinstance(action, act.OffloadTrainer):
                is_last = world.scheduler.swapper.trainer_version == len(due) + 1
                assert action.checkpoint == (event.time_s - last_s >= every_s or is_last)
                due.append(action.checkpoint)
    assert len(due) == 8
    assert 2 <= sum(due) < 8, "both answers must have been seen"
