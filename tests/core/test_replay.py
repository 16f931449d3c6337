"""Which trained groups are kept, which is replayed for which, and when one is forgotten."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.phases import Phase
from colocate.core.replay_buffer import Replay, ReplayBuffer
from colocate.core.reward_spread import has_spread, is_flat
from colocate.core.settings import Settings
from colocate.core.trajectory import ProtocolError, State, Trajectory
from colocate.core.types import BatchId, Ending, GroupId, Span, TrajectoryId, Version
from tests.core.world import World


def small(**changes: object) -> Settings:
    base = Settings(
        steps=9,
        group_size=2,
        groups_per_step=1,
        max_staleness=0,
        replay_groups=2,
        replay_min_std=0.1,
        replay_min_mean=0.3,
        replay_max_staleness=9,
        replay_max_uses=1,
    )
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def trained(group: int, *rewards: float, version: int = 0) -> list[Trajectory]:
    return [
        Trajectory(
            id=TrajectoryId(10 * group + slot),
            group=GroupId(group),
            state=State.ENDED,
            spans=(Span(version=Version(version), length=3),),
            reward=reward,
            ending=Ending.TRAINED,
        )
        for slot, reward in enumerate(rewards)
    ]


def acknowledge(
    buffer: ReplayBuffer,
    *groups: list[Trajectory],
    replays: list[Replay] | None = None,
    next_version: int = 1,
) -> list[int]:
    """The groups that are forgotten by it."""
    members = [member for group in groups for member in group]
    actions = buffer.acknowledge(BatchId(5), replays or [], members, Version(next_version))
    assert all(isinstance(action, act.ForgetContent) for action in actions)
    return [action.group for action in actions if isinstance(action, act.ForgetContent)]


def lease(buffer: ReplayBuffer, version: int = 1, taken: tuple[int, ...] = ()) -> Replay | None:
    return buffer.lease(Version(version), [GroupId(g) for g in taken], [0.0])


def group_leased(buffer: ReplayBuffer, version: int = 1) -> int | None:
    found = lease(buffer, version)
    return None if found is None else found.lease.group


# What is kept


@given(st.lists(st.integers(-999, 999).map(lambda n: n / 8), min_size=1, max_size=9))
def test_a_spread_above_zero_is_the_opposite_of_equal_rewards(rewards: list[float]) -> None:
    assert has_spread(rewards, min_std=0.0, min_mean=-1e10) == (not is_flat(rewards))


def test_the_deviation_is_the_populations_and_both_thresholds_must_be_passed() -> None:
    rewards = [0.0, 1.0]  # of mean 1/2 and of deviation 1/2; the sample's would be 0.71
    assert has_spread(rewards, min_std=0.49, min_mean=0.49)
    assert not has_spread(rewards, min_std=0.5, min_mean=0.49)
    assert not has_spread(rewards, min_std=0.49, min_mean=0.5)


@pytest.mark.parametrize(
    ("rewards", "is_kept"),
    [((1.0, 0.0), True), ((1.0, 1.0), False), ((0.5, 0.0), False), ((1.0, 0.9), False)],
)
def test_only_a_group_with_spread_and_a_good_mean_is_kept(
    rewards: tuple[float, float], is_kept: bool
) -> None:
    buffer = ReplayBuffer(small())
    assert acknowledge(buffer, trained(1, *rewards)) == []
    assert (GroupId(1) in buffer) is is_kept


def test_a_group_too_old_for_the_next_batch_or_without_a_token_is_not_kept() -> None:
    buffer = ReplayBuffer(small(replay_max_staleness=2))
    acknowledge(buffer, trained(1, 1.0, 0.0), next_version=3)
    silent = [dataclasses.replace(member, spans=()) for member in trained(2, 1.0, 0.0)]
    acknowledge(buffer, silent)
    assert len(buffer) == 0


def test_the_first_in_is_the_first_out_and_its_content_is_forgotten() -> None:
    buffer = ReplayBuffer(small(replay_groups=2))
    assert acknowledge(buffer, trained(1, 1.0, 0.0), trained(2, 1.0, 0.0)) == []
    assert acknowledge(buffer, trained(3, 1.0, 0.0)) == [1]
    assert acknowledge(buffer, trained(4, 1.0, 0.0), trained(5, 1.0, 0.0)) == [2, 3]
    assert len(buffer) == 2


def test_without_a_capacity_nothing_is_kept() -> None:
    buffer = ReplayBuffer(small(replay_groups=0))
    acknowledge(buffer, trained(1, 1.0, 0.0))
    assert len(buffer) == 0
    assert lease(buffer) is None


# What is replayed


def test_the_least_used_goes_first_then_the_freshest() -> None:
    buffer = ReplayBuffer(small(replay_groups=3, replay_max_uses=2))
    acknowledge(buffer, trained(1, 1.0, 0.0, version=0), trained(2, 1.0, 0.0, version=1))
    assert [group_leased(buffer, 2) for _ in range(5)] == [2, 1, 2, 1, None]


def test_a_use_is_a_lease_of_its_own_that_names_its_origin() -> None:
    buffer = ReplayBuffer(small(replay_max_uses=2))
    acknowledge(buffer, trained(1, 1.0, 0.0))
    first, second = lease(buffer), lease(buffer)
    assert first is not None
    assert second is not None
    assert (first.lease.replay, second.lease.replay) == (0, 1)
    assert first.lease.origin == second.lease.origin == 5
    assert first.lease.trajectories == (10, 11)


def test_a_group_is_not_replayed_twice_in_one_batch() -> None:
    buffer = ReplayBuffer(small(replay_max_uses=3))
    acknowledge(buffer, trained(1, 1.0, 0.0))
    assert lease(buffer) is not None
    assert lease(buffer, taken=(1,)) is None


def test_a_group_that_is_out_is_forgotten_only_when_it_is_back() -> None:
    buffer = ReplayBuffer(small(replay_groups=1))
    acknowledge(buffer, trained(1, 1.0, 0.0))
    out = lease(buffer)
    assert out is not None
    assert acknowledge(buffer, trained(2, 1.0, 0.0)) == []
    assert GroupId(1) in buffer  # and what came has no place
    assert GroupId(2) not in buffer
    assert acknowledge(buffer, replays=[out]) == [1]


@pytest.mark.parametrize(("version", "is_leased"), [(4, True), (5, False)])
def test_the_bound_of_replays_holds_when_one_is_leased(version: int, is_leased: bool) -> None:
    buffer = ReplayBuffer(small(replay_max_staleness=3))
    acknowledge(buffer, trained(1, 1.0, 0.0, version=1), next_version=2)
    assert (lease(buffer, version) is not None) is is_leased


def test_a_group_that_nothing_can_replay_any_more_is_forgotten() -> None:
    buffer = ReplayBuffer(small(replay_max_staleness=3))
    acknowledge(buffer, trained(1, 1.0, 0.0, version=1), next_version=2)
    assert acknowledge(buffer, next_version=4) == []
    assert acknowledge(buffer, next_version=5) == [1]


def test_a_replay_beyond_its_bound_is_refused_where_it_is_trained() -> None:
    buffer = ReplayBuffer(small(replay_max_staleness=3))
    acknowledge(buffer, trained(1, 1.0, 0.0))
    out = lease(buffer, 3)
    assert out is not None
    buffer.check_bound(Version(3), [out])
    with pytest.raises(ProtocolError, match="more than 3 behind version 4"):
        buffer.check_bound(Version(4), [out])


# In a run


def in_rollout(settings: Settings) -> World:
    world = World(settings)
    world._end_operation(0)
    assert world.scheduler.phase is Phase.ROLLOUT
    return world


def play(world: World, rewards: list[int]) -> list[act.Action]:
    """Finishes who is resident, in order of admission, with these rewards, and the swap after."""
    seen = len(world.lines)
    identifiers = [i for i, a in world.actors.items() if a.is_acting][: len(rewards)]
    for identifier in identifiers:
        world._answer(identifier, "turn", 0)
    for identifier, reward in zip(identifiers, rewards, strict=True):
        world._end_request(identifier, 2)
        world._answer(identifier, "finish", reward)
    while world._operation is not None and not world.is_over:
        world._end_operation(0)
    return [action for _, line in world.lines[seen:] for action in line]


def the_batch(actions: list[act.Action]) -> act.Train:
    [train] = [action for action in actions if isinstance(action, act.Train)]
    return train


def endings(actions: list[act.Action]) -> list[tuple[Ending, bool]]:
    return [(a.ending, a.keeps_content) for a in actions if isinstance(a, act.EndTrajectory)]


def test_a_flat_group_gives_way_to_a_replay_and_ends_filtered() -> None:
    world = in_rollout(small(replay_max_uses=2))
    first = play(world, [0, 1])
    assert endings(first) == [(Ending.TRAINED, True)] * 2
    second = play(world, [1, 1])
    batch = the_batch(second)
    assert batch.trajectories == ()
    [replay] = batch.replays
    assert (replay.origin, replay.trajectories) == (0, (0, 1))
    assert endings(second) == [(Ending.FILTERED, False)] * 2
    summary = world.scheduler.summary()
    counts = summary["trajectories"]
    assert (counts["trained"], counts["filtered"], counts["replayed"]) == (2, 2, 2)
    [reason] = [reason for reason in summary["reasons"] if reason.startswith("filtered")]
    assert "another group is replayed" in reason
    assert summary["replay"] == {"max_lag": 1, "mean_lag": 1.0}
    assert summary["staleness"]["histogram"] == {"0": 6}
    assert summary["tokens"]["trained"] == 6
    assert summary["reward"] == {"first": 0.5, "last": 0.5, "best": 0.5}
    assert world.scheduler.books.groups.of_last_step == {
        "num_flat_groups": 1,
        "num_filtered_groups": 0,
        "num_replaced_groups": 1,
        "sampled_reward_mean": 1.0,
    }


def test_without_a_group_to_replay_the_flat_one_is_trained_as_it_is() -> None:
    world = in_rollout(small())
    actions = play(world, [1, 1])
    assert the_batch(actions).trajectories == (0, 1)
    assert endings(actions) == [(Ending.TRAINED, False)] * 2
    assert world.scheduler.books.groups.of_last_step["num_flat_groups"] == 1
    assert world.scheduler.books.groups.of_last_step["num_replaced_groups"] == 0


def test_flat_groups_that_are_replaced_are_no_losses_to_faults() -> None:
    world = in_rollout(small(max_filtered_fraction=0.0, replay_max_uses=8))
    play(world, [0, 1])
    for _ in range(5):
        play(world, [0, 0])
    assert world.scheduler.phase is Phase.ROLLOUT
    assert world.scheduler.summary()["trajectories"]["filtered"] == 10


def test_contents_are_kept_as_long_as_they_can_be_replayed_and_no_longer() -> None:
    world = in_rollout(small(replay_groups=1))
    play(world, [0, 1])
    assert set(world.kept) == {0, 1}
    play(world, [1, 0])
    assert set(world.kept) == {2, 3}  # the first was pushed out
    actions = play(world, [0, 0])
    [forgotten] = [a for a in actions if isinstance(a, act.ForgetContent)]
    assert (forgotten.trajectories, forgotten.reason) == ((2, 3), "used 1 times")
    assert world.kept == {}


def test_a_replay_whose_content_is_not_what_was_trained_is_refused() -> None:
    world = in_rollout(small())
    play(world, [0, 1])
    world.kept[TrajectoryId(0)].content += "tampered"
    with pytest.raises(ProtocolError, match="not trained on what was leased"):
        play(world, [0, 0])


def test_a_masked_member_has_no_part_in_whether_a_group_is_flat_or_kept() -> None:
    """Its reward would make a spread; the group's only other member makes none."""
    world = in_rollout(small())
    play(world, [0, 1])
    one, other = world.actors
    for identifier, answer, reward in ((one, "mask", 0), (other, "finish", 1)):
        world._answer(identifier, "turn", 0)
        world._end_request(identifier, 2)
        world._answer(identifier, answer, reward)
    while world._operation is not None:
        world._end_operation(0)
    counts = world.scheduler.summary()["trajectories"]
    assert (counts["masked"], counts["filtered"], counts["replayed"]) == (1, 1, 2)


def test_the_last_steps_are_not_admitted_for_twice_where_a_replay_fills_one() -> None:
    world = in_rollout(small(steps=2))
    play(world, [0, 1])
    play(world, [0, 0])
    summary = world.scheduler.summary()
    assert summary["steps"] == 2
    assert summary["trajectories"]["admitted"] == 4


@pytest.mark.parametrize("policy", ["interval", "drain"])
def test_two_batches_of_a_phase_may_replay_one_group_under_two_leases(policy: str) -> None:
    settings = small(policy=policy, max_staleness=1, swap_interval=2, replay_max_uses=2)
    world = in_rollout(settings)
    play(world, [0, 1, 0, 0])
    batches = [a for a in play(world, [0, 0, 0, 0]) if isinstance(a, act.Train)]
    replays = [replay for batch in batches for replay in batch.replays]
    assert [(r.replay, r.group) for r in replays] == [(0, 0), (1, 0)]
    assert world.kept == {}
    world.finish_fairly()
    world.auditor.check_summary(world.scheduler.summary())
    assert world.auditor.violations == []


def test_a_replay_acknowledged_twice_is_refused() -> None:
    world = in_rollout(small())
    play(world, [0, 1])
    play(world, [0, 0])
    done = next(e for e, _ in reversed(world.lines) if isinstance(e, ev.BatchTrained))
    with pytest.raises(ProtocolError, match="not leased"):
        world.scheduler.handle(dataclasses.replace(done, time_s=world._tick()))
