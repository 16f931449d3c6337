"""Groups of equal rewards are given up at once, up to a limit, and others take their place."""

from __future__ import annotations

import dataclasses

import pytest

from colocate.core import actions as act
from colocate.core.phases import Phase
from colocate.core.settings import Settings
from colocate.core.types import Ending, TrajectoryId
from tests.core.test_replay import in_rollout, play
from tests.core.world import World


def small(**changes: object) -> Settings:
    base = Settings(
        steps=3, group_size=2, groups_per_step=1, max_staleness=0, dynamic_sampling=True
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def warnings(world: World) -> list[str]:
    return [a.message for _, line in world.lines for a in line if isinstance(a, act.Warn)]


def test_a_flat_group_ends_filtered_when_it_is_complete_and_another_is_admitted() -> None:
    world = in_rollout(small())
    actions = play(world, [1, 1])
    assert world.scheduler.phase is Phase.ROLLOUT
    ended = [a for a in actions if isinstance(a, act.EndTrajectory)]
    assert [a.ending for a in ended] == [Ending.FILTERED] * 2
    started = [a.group for a in actions if isinstance(a, act.StartTrajectory)]
    assert started == [1, 1]
    play(world, [0, 1])
    summary = world.scheduler.summary()
    counts = summary["trajectories"]
    assert (summary["steps"], counts["trained"], counts["filtered"]) == (1, 2, 2)
    [reason] = [reason for reason in summary["reasons"] if reason.startswith("filtered")]
    assert "another group is sampled" in reason
    assert world.scheduler.books.groups.of_last_step == {
        "num_flat_groups": 1,
        "num_filtered_groups": 1,
        "num_replaced_groups": 0,
        "sampled_reward_mean": 0.75,
    }


def test_at_its_limit_it_gives_in_with_one_warning_and_starts_anew_with_the_next_step() -> None:
    world = in_rollout(small(dynamic_sampling_max_groups=2))
    for _ in range(2):
        play(world, [1, 1])
    assert world.scheduler.summary()["steps"] == 0
    assert warnings(world) == []
    play(world, [1, 1])
    assert world.scheduler.summary()["steps"] == 1
    [message] = warnings(world)
    assert "algorithm.dynamic_sampling_max_groups = 2" in message
    play(world, [1, 1])
    assert world.scheduler.summary()["steps"] == 1
    world.finish_fairly()
    counts = world.scheduler.summary()["trajectories"]
    assert (counts["trained"], counts["filtered"]) == (6, 12)
    assert warnings(world) == world.scheduler.summary()["warnings"] == [message]


def test_the_limit_is_ten_batches_where_none_is_given() -> None:
    assert small(groups_per_step=3).max_flat_groups == 30
    assert small(dynamic_sampling_max_groups=7).max_flat_groups == 7


def test_a_group_is_flat_where_masks_leave_it_one_member_or_equal_ones() -> None:
    world = in_rollout(small(group_size=3))
    kept, masked, equal = world.actors
    for identifier, answer, reward in ((kept, "finish", 6), (equal, "finish", 6)):
        world._answer(identifier, "turn", 0)
        world._end_request(identifier, 2)
        world._answer(identifier, answer, reward)
    assert kept in world.actors
    world._answer(masked, "turn", 0)
    world._end_request(masked, 2)
    world._answer(masked, "mask", 1)
    assert not {kept, masked, equal} & set(world.actors)
    counts = world.scheduler.summary()["trajectories"]
    assert (counts["masked"], counts["filtered"]) == (1, 2)


def test_filtered_groups_are_no_losses_to_faults() -> None:
    world = in_rollout(small(max_filtered_fraction=0.0))
    for _ in range(6):
        play(world, [1, 1])
    assert world.scheduler.phase is Phase.ROLLOUT


@pytest.mark.parametrize("policy", ["interval", "drain"])
@pytest.mark.parametrize("max_staleness", [0, 2])
@pytest.mark.parametrize("limit", [1, None])
def test_a_run_of_flat_groups_alone_comes_to_its_end(
    policy: str, max_staleness: int, limit: int | None
) -> None:
    settings = small(policy=policy, max_staleness=max_staleness, dynamic_sampling_max_groups=limit)
    world = World(settings)
    world.finish_fairly()
    summary = world.scheduler.summary()
    assert (summary["steps"], summary["trajectories"]["trained"]) == (3, 6)
    assert summary["trajectories"]["filtered"] >= 3 * 2 * settings.max_flat_groups
    world.auditor.check_summary(summary)
    assert world.auditor.violations == []


def test_every_step_teaches_where_every_second_group_is_flat() -> None:
    def reward(trajectory: TrajectoryId) -> int:
        return trajectory % 2 if trajectory // 2 % 2 else 0

    world = World(small(steps=5, groups_per_step=2, max_staleness=1), fair_reward=reward)
    world.finish_fairly()
    batches = [a for _, line in world.lines for a in line if isinstance(a, act.Train)]
    trained = [t // 2 % 2 for batch in batches for t in batch.trajectories]
    assert trained == [1] * 20
    assert warnings(world) == []


def test_replay_and_dynamic_sampling_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="exclude each other"):
        small(replay_groups=1)
