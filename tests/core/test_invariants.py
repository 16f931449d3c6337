"""The six invariants over random orders of facts, and proof that the search can find a fault."""

from __future__ import annotations

import copy
import dataclasses
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.core import crossing, flat_groups, staleness
from colocate.core import events as ev
from colocate.core.buffer import Buffer
from colocate.core.phases import IllegalTransition
from colocate.core.phases import Phase as RunPhase
from colocate.core.replay_buffer import ReplayBuffer
from colocate.core.settings import Settings
from colocate.core.trajectory import ProtocolError
from tests.core.any_run import FAIR_REWARDS, any_settings, any_world, play_by_chance
from tests.core.world import World


@st.composite
def run_settings(draw: st.DrawFn, *, replays: bool) -> Settings:
    return any_settings(lambda options: draw(st.sampled_from(options)), replays=replays)


@st.composite
def worlds(draw: st.DrawFn, *, replays: bool = False) -> World:
    """Any, or, to look closer at replay, such as replay and have no spares."""
    rewards = draw(st.sampled_from(sorted(FAIR_REWARDS)))
    return World(draw(run_settings(replays=replays)), fair_reward=FAIR_REWARDS[rewards])


def complete(world: World) -> None:
    """From here on nothing breaks, and the run must reach its end with its books balanced."""
    world.finish_fairly()
    world.auditor.check_summary(world.scheduler.summary())
    assert world.auditor.violations == []
    outcome = world.scheduler.swapper.outcome
    assert outcome is not None
    assert outcome.status == "completed", outcome.error
    assert world.scheduler.swapper.engine_version == world.scheduler.settings.steps


def state_of(world: World) -> object:
    scheduler = world.scheduler
    return copy.deepcopy(
        (
            list(scheduler.buffer),
            scheduler.buffer.groups,
            scheduler.requests.num_inflight,
            scheduler.phase,
            scheduler.swapper.outcome,
            scheduler.summary(),
        )
    )


def play(world: World, data: st.DataObject, num_facts: int) -> None:
    for _ in range(num_facts):
        if world.is_over:
            return
        facts = world.possible()
        if not facts:
            return
        chosen = data.draw(st.integers(0, len(facts) - 1))
        facts[chosen](data.draw(st.integers(0, 11)))


@given(worlds(), st.data(), st.integers(0, 150))
def test_every_order_of_facts_keeps_the_invariants_and_can_still_complete(
    world: World, data: st.DataObject, num_facts: int
) -> None:
    play(world, data, num_facts)
    complete(world)


@pytest.mark.parametrize("seed", range(100))
def test_any_run_that_chance_plays_completes(seed: int) -> None:
    chance = Random(seed)
    world = any_world(chance)
    play_by_chance(world, chance, chance.randint(0, 150))
    complete(world)
    assert world.is_over


@given(worlds(), st.data(), st.integers(0, 80))
def test_an_event_that_is_refused_changes_nothing(
    world: World, data: st.DataObject, num_facts: int
) -> None:
    play(world, data, num_facts)
    event, _ = data.draw(st.sampled_from(world.lines))
    again = dataclasses.replace(event, time_s=world.time_s)
    before = state_of(world)
    try:
        world.scheduler.handle(again)
    except (ProtocolError, IllegalTransition):
        assert state_of(world) == before


@given(worlds(), st.data(), st.integers(0, 120))
def test_drain_and_a_bound_of_zero_carry_nothing(
    world: World, data: st.DataObject, num_facts: int
) -> None:
    play(world, data, num_facts)
    world.finish_fairly()
    summary, run = world.scheduler.summary(), world.scheduler.settings
    carries_spares = run.redundant_groups > 0 and run.spare_groups == "carry"
    if (run.policy == "drain" and not carries_spares) or run.max_staleness == 0:
        assert summary["partials"]["carried"] == 0
        assert summary["tokens"]["carried"] == 0
    if run.max_staleness == 0:
        assert summary["staleness"]["max_trained_lag"] == 0


@given(worlds(), st.data(), st.integers(0, 120), st.booleans())
def test_a_stop_at_any_moment_closes_the_run_with_its_books_balanced(
    world: World, data: st.DataObject, num_facts: int, grace_runs_out: bool
) -> None:
    play(world, data, num_facts)
    if world.is_over or world.scheduler.phase is RunPhase.CLOSING:
        return
    world.take(ev.StopRequested(time_s=world.time_s, signal=15))
    grace_s = world.scheduler.settings.grace_s
    if grace_runs_out:
        world.take(ev.TimerFired(time_s=world.time_s + grace_s, timer="grace"))
        world.time_s += grace_s
    world.finish_fairly()
    outcome = world.scheduler.swapper.outcome
    assert outcome is not None
    assert (outcome.status, outcome.signal) == ("stopped", 15)
    assert world.scheduler.phase is RunPhase.CLOSED
    world.auditor.check_summary(world.scheduler.summary())
    assert world.auditor.violations == []


# Faults that the search above must be able to find: each breaks one rule in one place.


def forget_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staleness, "lag", lambda trained_at, sampled_at: 0)


def lease_incomplete_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    def settle(self: Buffer, group: int) -> None:
        self._complete[group] = None  # type: ignore[index]

    monkeypatch.setattr(Buffer, "_settle", settle)


def keep_a_batch_after_its_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledge = Buffer.acknowledge

    def twice(self: Buffer, lease, time_s):  # type: ignore[no-untyped-def]
        kept = {t: self._trajectories[t] for t in lease.trajectories}
        ended = acknowledge(self, lease, time_s)
        for group in lease.groups:
            members = [t for t, record in kept.items() if record.group == group]
            self._groups[group] = type(self).Group_type(id=group, members=members)
            self._trajectories.update(kept)
            self._complete[group] = None
        return ended

    from colocate.core.residents import Group

    monkeypatch.setattr(Buffer, "Group_type", Group, raising=False)
    monkeypatch.setattr(Buffer, "acknowledge", twice)


def end_without_telling(monkeypatch: pytest.MonkeyPatch) -> None:
    retire = crossing.retire
    monkeypatch.setattr(crossing, "retire", lambda *args: retire(*args) and [])


def let_requests_through_while_training(monkeypatch: pytest.MonkeyPatch) -> None:
    from colocate.core.scheduler import Scheduler

    go_on = Scheduler._go_on

    def leaky(self: Scheduler, event):  # type: ignore[no-untyped-def]
        return go_on(self, event) + self._submit()

    monkeypatch.setattr(Scheduler, "_go_on", leaky)


def pass_over_the_first_finisher(monkeypatch: pytest.MonkeyPatch) -> None:
    from colocate.core import redundancy
    from colocate.core.types import Ending

    cancel = redundancy.cancel_spare_members

    def unfair(buffer, requests, books, group, time_s):  # type: ignore[no-untyped-def]
        spares = buffer.drop_spare_members(group, time_s)
        members = buffer.members(group)
        actions = cancel(buffer, requests, books, group, time_s)
        if spares and not members[0].ending:
            # One that has finished goes with them.
            buffer._end(members[0], Ending.CANCELLED, time_s)
            buffer._num_ended += 1
            buffer._forget(members[0])
            actions.append(redundancy._cancelled(members[0], requests, books))
        return actions + [redundancy._cancelled(m, requests, books) for m in spares]

    monkeypatch.setattr(redundancy, "cancel_spare_members", unfair)


def keep_waiting_for_a_request_that_was_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    from colocate.core.admission import RequestQueue

    monkeypatch.setattr(RequestQueue, "give_up", lambda self, request: None)


def forget_the_bound_of_replays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplayBuffer, "_is_within_bound", lambda *_: True)


def replay_a_group_twice_in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = ReplayBuffer.lease
    monkeypatch.setattr(
        ReplayBuffer, "lease", lambda self, version, _, replaced: lease(self, version, (), replaced)
    )


def replay_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = ReplayBuffer.lease

    def uncounted(self: ReplayBuffer, *args):  # type: ignore[no-untyped-def]
        replay = lease(self, *args)
        if replay is not None:
            self._kept[replay.lease.group].num_uses = 0
        return replay

    monkeypatch.setattr(ReplayBuffer, "lease", uncounted)


def forget_what_is_out(monkeypatch: pytest.MonkeyPatch) -> None:
    lease = ReplayBuffer.lease

    def not_held(self: ReplayBuffer, *args):  # type: ignore[no-untyped-def]
        replay = lease(self, *args)
        if replay is not None:
            self._kept[replay.lease.group].num_out = 0
        return replay

    monkeypatch.setattr(ReplayBuffer, "lease", not_held)


def take_every_group_for_flat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flat_groups, "is_flat", lambda _: True)


BREAKS_OF_REPLAY = [
    forget_the_bound_of_replays,
    replay_a_group_twice_in_one_batch,
    replay_without_end,
    forget_what_is_out,
]


@pytest.mark.parametrize(
    "break_it",
    [
        *BREAKS_OF_REPLAY,
        take_every_group_for_flat,
        forget_the_bound,
        lease_incomplete_groups,
        keep_a_batch_after_its_acknowledgement,
        end_without_telling,
        let_requests_through_while_training,
        pass_over_the_first_finisher,
        keep_waiting_for_a_request_that_was_given_up,
    ],
)
def test_the_properties_catch_a_broken_buffer(break_it, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)

    def search() -> None:
        for seed in range(1000):
            chance = Random(seed)
            world = any_world(chance, replays=break_it in BREAKS_OF_REPLAY)
            play_by_chance(world, chance, chance.randint(40, 150))
            complete(world)

    with pytest.raises((AssertionError, ProtocolError, KeyError, ZeroDivisionError)):
        search()
