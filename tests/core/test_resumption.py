"""A checkpoint at any moment of any history: what it holds, and what a new life makes of it."""

from __future__ import annotations

import copy
import dataclasses

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.buffer_snapshot import BufferSnapshot, TrajectoryRecord
from colocate.core.phases import Phase
from colocate.core.scheduler import Scheduler
from colocate.core.settings import Settings
from colocate.core.trajectory import ProtocolError, State, Trajectory
from colocate.core.types import TrajectoryId, Version
from tests.core.test_invariants import play, run_settings, worlds
from tests.core.world import Saved, World


def through_a_file(snapshot: BufferSnapshot) -> BufferSnapshot:
    return msgspec.msgpack.decode(msgspec.msgpack.encode(snapshot), type=BufferSnapshot)


def everything(world: World) -> object:
    """All that buffer and replay buffer hold, in every order, but what they only remember."""
    buffer, replays = world.scheduler.buffer, world.scheduler.swapper.replays
    return copy.deepcopy(
        (
            [*buffer._trajectories.items()],
            [(name, group.members) for name, group in buffer._groups.items()],
            [*buffer._complete],
            [*buffer._leases.items()],
            (buffer._num_ended, buffer._num_done, buffer._next_trajectory, buffer._next_batch),
            [buffer.oldest(group) for group in buffer.groups],
            [*replays._kept.items()],
            replays._next_replay,
        )
    )


def replace_buffers_by_restored_ones(world: World) -> None:
    """In place: the rest of the scheduler holds on to these objects."""
    snapshot = through_a_file(world.scheduler.snapshot())
    buffer, replays = world.scheduler.buffer, world.scheduler.swapper.replays
    for forgets in (buffer._trajectories, buffer._groups, buffer._leases, replays._kept):
        forgets.clear()
    replays.restore(snapshot.replays)
    buffer.restore(snapshot.residents, replays)


@given(st.data(), st.integers(1, 150), st.booleans())
def test_a_restored_buffer_is_the_saved_one_and_does_the_same_from_there_on(
    data: st.DataObject, num_facts: int, replays: bool
) -> None:
    settings = data.draw(run_settings(replays=replays))
    one, other = (World(settings, fair_reward=lambda t: t % 2) for _ in range(2))
    for _ in range(num_facts):
        facts, same_facts = one.possible(), other.possible()
        if one.is_over or not facts:
            break
        chosen = data.draw(st.integers(0, len(facts) - 1))
        variant = data.draw(st.integers(0, 11))
        facts[chosen](variant)
        same_facts[chosen](variant)
        if data.draw(st.integers(0, 9)) == 0:
            before = everything(other)
            replace_buffers_by_restored_ones(other)
            assert everything(other) == before
    assert other.lines == one.lines
    assert everything(other) == everything(one)
    one.finish_fairly()
    other.finish_fairly()
    assert other.lines == one.lines


def test_a_record_holds_every_field_of_a_trajectory_but_its_story() -> None:
    kept = {field.name for field in dataclasses.fields(TrajectoryRecord)}
    assert kept == {field.name for field in dataclasses.fields(Trajectory)} - {"story"}


NO_CHECKPOINT_IN = (Phase.STARTING, Phase.TRAINING, Phase.CLOSING, Phase.CLOSED)
"""Nothing is written in these phases, or nothing is resident any more."""


def resume(world: World, settings: Settings | None = None) -> World:
    return World(
        settings or world.scheduler.settings, fair_reward=world._fair_reward, origin=world.save()
    )


def trained_groups(world: World, up_to: Version | None = None) -> list[int]:
    """Groups of acknowledged batches, one entry a training, replays aside."""
    groups = []
    trains: dict[int, act.Train] = {}
    of: dict[TrajectoryId, int] = {}
    for event, actions in world.lines:
        if isinstance(event, ev.Restored):
            of |= {r.id: r.group for r in event.buffer.residents.trajectories}
        if isinstance(event, ev.BatchTrained) and (up_to is None or event.version <= up_to):
            groups += sorted({of[t] for t in trains[event.batch].trajectories})
        for action in actions:
            if isinstance(action, act.StartTrajectory):
                of[action.trajectory] = action.group
            if isinstance(action, act.Train):
                trains[action.batch] = action
    return groups


def num_resident_tokens(world: World) -> int:
    return sum(trajectory.num_sampled_tokens for trajectory in world.scheduler.buffer)


def check_books(world: World) -> None:
    summary = world.scheduler.summary()
    world.auditor.check_summary(summary)
    assert world.auditor.violations == []
    tokens = summary["tokens"]
    assert tokens["generated"] + summary["resumed"]["tokens"] == (
        tokens["trained"] + tokens["discarded"] + num_resident_tokens(world)
    )


@given(worlds(), st.data(), st.integers(0, 150), st.integers(0, 60))
def test_a_life_that_goes_on_from_any_moment_balances_and_trains_each_prompt_once(
    world: World, data: st.DataObject, num_facts: int, num_more: int
) -> None:
    play(world, data, num_facts)
    if world.scheduler.phase in NO_CHECKPOINT_IN:
        return
    second = resume(world)
    check_books(second)
    held = {t.id for t in world.scheduler.buffer}
    assert {t.id for t in second.scheduler.buffer} == held
    assert not any(t.state is State.LEASED for t in second.scheduler.buffer)
    play(second, data, num_more)
    second.finish_fairly()
    check_books(second)
    outcome = second.scheduler.swapper.outcome
    assert outcome is not None
    assert outcome.status == "completed", outcome.error
    saved = world.scheduler.swapper.trainer_version
    trained = trained_groups(world, up_to=saved) + trained_groups(second)
    assert len(trained) == len(set(trained))


@given(worlds(), st.data(), st.integers(20, 150), st.data())
def test_a_life_under_another_configuration_takes_up_what_fits_and_counts_the_rest(
    world: World, data: st.DataObject, num_facts: int, changes: st.DataObject
) -> None:
    play(world, data, num_facts)
    if world.scheduler.phase in NO_CHECKPOINT_IN:
        return
    replays = world.scheduler.settings.replay_groups > 0
    other = changes.draw(run_settings(replays=replays))
    settings = dataclasses.replace(other, steps=world.scheduler.swapper.trainer_version + 3)
    held = len(world.scheduler.buffer)
    second = resume(world, settings)
    resumed = second.scheduler.summary()["resumed"]
    found = resumed["finished"] + resumed["partials"] + resumed["begun"]
    assert found == held
    assert second.scheduler.books.admitted == held - resumed["given_up"]
    room = settings.max_resident_groups + settings.redundant_groups
    assert second.scheduler.buffer.num_groups <= room
    second.finish_fairly()
    check_books(second)


@given(worlds(), st.data(), st.integers(0, 120), st.integers(0, 30))
def test_three_lives_balance_as_two_do(
    world: World, data: st.DataObject, num_facts: int, num_more: int
) -> None:
    play(world, data, num_facts)
    if world.scheduler.phase in NO_CHECKPOINT_IN:
        return
    second = resume(world)
    play(second, data, num_more)
    if second.scheduler.phase in (Phase.TRAINING, Phase.CLOSING, Phase.CLOSED):
        return
    third = resume(second)
    third.finish_fairly()
    check_books(third)


SETTINGS = Settings(steps=4, group_size=2, groups_per_step=1, max_staleness=1)


def a_world_with_partials() -> World:
    """Everybody wants a second turn."""
    world = World(SETTINGS)
    world._end_operation(0)
    for identifier in [t.id for t in world.scheduler.buffer]:
        world._answer(identifier, "turn", 0)
    for identifier in [t.id for t in world.scheduler.buffer if t.request]:
        world._end_request(identifier, 2)
        world._answer(identifier, "turn", 0)
    return world


def test_a_batch_that_was_leased_and_not_acknowledged_is_trained_in_the_next_life() -> None:
    world = World(SETTINGS)
    for _ in range(100):
        if world.scheduler.phase is Phase.SLEEPING:
            break
        if world._operation is not None:
            world._end_operation(0)
        else:
            assert world._progress_one()
    [leased] = world.scheduler.snapshot().residents.leases
    second = resume(world)
    assert all(second.scheduler.buffer.is_complete(group) for group in leased.groups)
    second.finish_fairly()
    check_books(second)
    assert trained_groups(second)[: len(leased.groups)] == [*leased.groups]


def test_what_cannot_be_replayed_begins_again_and_its_tokens_are_counted_with_the_reason() -> None:
    world = resume(a_world_with_partials())
    [first, *_] = world.scheduler.buffer
    num_tokens = first.num_sampled_tokens
    world._answer(first.id, "fail", 0)
    resumed = world.scheduler.summary()["resumed"]
    assert resumed["restarted"] == 1
    assert resumed["discarded_tokens"] == num_tokens > 0
    assert resumed["reasons"] == {"it answers otherwise": 1}
    assert (first.attempt, first.num_sampled_tokens, first.num_turns) == (1, 0, 0)
    world.finish_fairly()
    check_books(world)


def test_a_partial_whose_content_has_changed_on_the_way_is_refused() -> None:
    world = resume(a_world_with_partials())
    [first, *_] = world.scheduler.buffer
    world.actors[first.id].content += "!"
    with pytest.raises(ProtocolError, match="behind the scheduler's back"):
        world._answer(first.id, "turn", 0)


def test_a_buffer_is_restored_at_the_beginning_only_and_once() -> None:
    world = resume(a_world_with_partials())
    again = dataclasses.replace(world.lines[1][0], time_s=world.time_s)
    assert isinstance(again, ev.Restored)
    with pytest.raises(ProtocolError, match="once"):
        world.scheduler.handle(again)
    with pytest.raises(ProtocolError):
        Scheduler(SETTINGS).handle(again)


def test_the_audit_finds_a_trajectory_that_was_left_behind() -> None:
    world = a_world_with_partials()
    second = resume(world)
    lines = second.lines
    from colocate.core.audit import Auditor

    auditor = Auditor()
    auditor.feed(*lines[0])
    event, actions = lines[1]
    auditor.feed(event, [a for a in actions if not isinstance(a, act.ResumeTrajectory)])
    assert [v.invariant for v in auditor.violations] == ["conservation"]


def test_a_snapshot_of_another_schema_or_at_odds_with_itself_is_refused() -> None:
    snapshot = a_world_with_partials().scheduler.snapshot()
    with pytest.raises(ValueError, match="schema 9"):
        dataclasses.replace(snapshot, schema=9)
    residents = dataclasses.replace(
        snapshot.residents, trajectories=snapshot.residents.trajectories[1:]
    )
    with pytest.raises(ValueError, match="not made of"):
        dataclasses.replace(snapshot, residents=residents)


def test_a_saved_world_is_plain_data() -> None:
    saved: Saved = a_world_with_partials().save()
    assert saved.buffer is not None
    assert through_a_file(saved.buffer) == saved.buffer
