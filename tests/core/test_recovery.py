"""What is lost is started anew: decisions, books and audit over random orders of facts."""

from __future__ import annotations

import dataclasses
from collections import Counter
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core import rollback
from colocate.core.admission import RequestQueue
from colocate.core.buffer import Buffer
from colocate.core.deadlines import STOOD_STILL_S
from colocate.core.phases import TRANSITIONS, Cause
from colocate.core.phases import Phase as RunPhase
from colocate.core.remedies import Remedy
from colocate.core.residency import ordered
from colocate.core.restarts import Process, Restarts
from colocate.core.settings import Settings
from colocate.core.trajectory import ProtocolError
from colocate.core.types import TRAINER_PARTS, Version
from tests.core.any_run import FAIR_REWARDS, POLICIES, any_world, play_by_chance, with_losses
from tests.core.test_invariants import play, run_settings
from tests.core.world import World

BASE = Settings(
    steps=4,
    group_size=2,
    groups_per_step=1,
    max_staleness=1,
    sleep="2",
    checkpoint_every_steps=1,
    max_restarts=3,
    restart_window_s=1e9,
)


@st.composite
def worlds_of_losses(draw: st.DrawFn) -> World:
    """Worlds in which processes may be lost as often as the settings allow."""
    limit = draw(st.integers(1, 3))
    run = draw(run_settings(replays=draw(st.booleans())))
    run = with_losses(run, lambda options: draw(st.sampled_from(options)), limit)
    rewards = FAIR_REWARDS[draw(st.sampled_from(sorted(FAIR_REWARDS)))]
    return World(run, fair_reward=rewards, num_losses=limit)


def finish(world: World) -> dict[str, Any]:
    """From here on nothing is lost; what was lost must not keep the run from its end."""
    world.num_losses = 0
    world.finish_fairly()
    summary = world.scheduler.summary()
    world.auditor.check_summary(summary)
    assert world.auditor.violations == []
    outcome = world.scheduler.swapper.outcome
    assert outcome is not None
    assert outcome.status == "completed", outcome.error
    return summary


@given(worlds_of_losses(), st.data(), st.integers(0, 150))
def test_whatever_is_lost_in_whatever_order_the_run_completes_with_its_books_balanced(
    world: World, data: st.DataObject, num_facts: int
) -> None:
    play(world, data, num_facts)
    balance(world)
    assert world.is_over


NUM_SEEDS = 100


def balance(world: World) -> None:
    summary = finish(world)
    assert summary["steps"] == world.scheduler.settings.steps
    assert world.scheduler.swapper.engine_version == world.scheduler.settings.steps
    tokens, resumed = summary["tokens"], summary["resumed"]["tokens"]
    resident = sum(t.num_sampled_tokens for t in world.scheduler.buffer)
    assert tokens["generated"] + resumed == tokens["trained"] + tokens["discarded"] + resident
    measured = [result["step"] for result in world.scheduler.books.evaluations.results]
    assert measured == sorted(set(measured))


def play_losses(seed: int) -> World:
    chance = Random(seed)
    world = any_world(chance, replays=chance.random() < 0.5, num_losses=chance.randint(1, 3))
    play_by_chance(world, chance, chance.randint(0, 150))
    balance(world)
    return world


@pytest.mark.parametrize("seed", range(NUM_SEEDS))
def test_whatever_chance_takes_from_a_run_it_completes(seed: int) -> None:
    assert play_losses(seed).is_over


@pytest.mark.nightly
@pytest.mark.timeout(3600)
def test_of_a_million_facts_none_leads_a_run_where_it_cannot_complete() -> None:
    seed, num_facts = NUM_SEEDS, Counter[str]()
    while num_facts.total() < 1_000_000:
        world = play_losses(seed)
        num_facts[world.scheduler.settings.policy] += len(world.lines)
        seed += 1
    assert min(num_facts[policy] for policy in POLICIES) > 100_000


EVALUATED = dataclasses.replace(BASE, eval_every_steps=1, eval_num_samples=2, keep_best=True)


def reach_evaluation(world: World, version: int) -> None:
    """Up to the middle of the evaluation of a version."""
    while world._evaluation is None or world._evaluation.version != version:
        world.step_fairly()
    world._go_on_evaluating(2)


@pytest.mark.parametrize("lost", [ev.EngineLost, ev.TrainerLost])
@pytest.mark.parametrize("version", [0, 2, BASE.steps])
def test_an_evaluation_under_which_a_process_is_lost_is_done_again(
    lost: type[ev.EngineLost | ev.TrainerLost], version: int
) -> None:
    world = World(EVALUATED)
    reach_evaluation(world, version)
    world.take(lost(time_s=world.time_s, error="it died"))
    world._tell_of_cut(0)
    summary = finish(world)
    results = world.scheduler.books.evaluations.results
    assert [result["step"] for result in results] == list(range(BASE.steps + 1))
    assert sum(summary["eval"]["cut"].values()) == 1
    assert [rating.version for rating in world.ratings] == list(range(1, BASE.steps + 1))


def test_one_that_was_over_when_the_engine_was_lost_counts() -> None:
    world = World(EVALUATED)
    reach_evaluation(world, 2)
    evaluation = world._evaluation
    assert evaluation is not None
    while evaluation.num_open:
        world._answer_sample(min(evaluation.acting), "score")
    world.take(ev.EngineLost(time_s=world.time_s, error="it died"))
    evaluation.is_void = False  # its end was on the way
    world._tell_of_cut(0)
    summary = finish(world)
    assert summary["eval"]["evaluations"] == BASE.steps + 1
    assert summary["eval"]["samples"]["cut"] == 0


def test_evaluations_of_an_abandoned_line_leave_no_results() -> None:
    run = dataclasses.replace(EVALUATED, keep_best=False, checkpoint_every_steps=0)
    world = World(run)
    reach_evaluation(world, 2)
    evaluation = world._evaluation
    assert evaluation is not None
    world.take(ev.TrainerLost(time_s=world.time_s, error="it died"))
    evaluation.is_void = False  # its end was on the way
    world._tell_of_cut(0)
    assert [r["step"] for r in world.scheduler.books.evaluations.results] == [0]
    finish(world)
    results = world.scheduler.books.evaluations.results
    assert [result["step"] for result in results] == list(range(BASE.steps + 1))


@given(worlds_of_losses(), st.data(), st.integers(0, 120), st.booleans())
def test_a_stop_at_any_moment_around_a_loss_closes_the_run(
    world: World, data: st.DataObject, num_facts: int, is_trainer: bool
) -> None:
    play(world, data, num_facts)
    if world.is_over or world.scheduler.phase is RunPhase.CLOSING:
        return
    world.take(ev.StopRequested(time_s=world.time_s, signal=15))
    lost = ev.TrainerLost if is_trainer else ev.EngineLost
    if not world.is_over:
        world.take(lost(time_s=world.time_s, incarnation=world.incarnation, error="killed"))
    world.num_losses = 0
    world.finish_fairly()
    outcome = world.scheduler.swapper.outcome
    assert outcome is not None
    assert outcome.status in ("stopped", "failed")
    world.auditor.check_summary(world.scheduler.summary())
    assert world.auditor.violations == []


def reach(world: World, phase: RunPhase) -> None:
    """Up to a phase of the second swap, or to the beginning."""
    for _ in range(2000):
        if world.scheduler.phase is phase and (
            phase is RunPhase.STARTING or world.scheduler.books.swaps == 1
        ):
            return
        world.step_fairly()
    raise AssertionError(f"{phase} was not reached")


LOSABLE = [phase for (phase, cause) in TRANSITIONS if cause is Cause.TRAINER_LOST]


@pytest.mark.parametrize("phase", LOSABLE)
def test_an_engine_that_is_lost_in_any_phase_costs_nothing_that_was_told(phase: RunPhase) -> None:
    world = World(BASE)
    reach(world, phase)
    resident = {t.id: t.spans for t in world.scheduler.buffer}
    version = world.scheduler.swapper.trainer_version
    world.take(ev.EngineLost(time_s=world.time_s, error="it died"))
    for trajectory, spans in resident.items():
        found = world.scheduler.buffer.get(trajectory)
        assert found is not None
        assert found.spans == spans
    assert world.scheduler.swapper.trainer_version == version
    summary = finish(world)
    started = [a for _, actions in world.lines for a in actions if isinstance(a, act.StartEngine)]
    assert [a.incarnation for a in started] == [1]
    assert summary["recoveries"]["engine"] == 1
    assert summary["recoveries"]["causes"] == {"engine: it died": 1}
    assert summary["recoveries"]["rollbacks"] == 0
    # A new engine never serves before a whole set of weights was published to it.
    kinds = [
        type(a)
        for _, actions in world.lines
        for a in actions
        if isinstance(a, act.StartEngine | act.Publish | act.SubmitRequest)
    ]
    after = kinds[kinds.index(act.StartEngine) :]
    assert act.SubmitRequest not in after[: after.index(act.Publish)]


@pytest.mark.parametrize("goes_back", [False, True])
@pytest.mark.parametrize("phase", LOSABLE)
def test_a_new_engine_that_is_lost_as_it_starts_leaves_no_trainer_beside_the_next_one(
    phase: RunPhase, goes_back: bool
) -> None:
    """Nobody has said yet that the trainer has left: it is asked to for each of them."""
    world = World(BASE)
    reach(world, phase)
    lost = ev.TrainerLost if goes_back else ev.EngineLost
    world.take(lost(time_s=world.time_s, error="it died"))
    if world.scheduler.phase is not RunPhase.STARTING:
        reach(world, RunPhase.STARTING)
    world.take(
        ev.EngineLost(
            time_s=world.time_s, error="again", incarnation=world.scheduler.swapper.incarnation
        )
    )
    assert world.scheduler.phase is RunPhase.STARTING
    summary = finish(world)
    started = [a for _, actions in world.lines for a in actions if isinstance(a, act.StartEngine)]
    assert summary["recoveries"]["engine"] == len(started) == (1 if goes_back else 2)
    assert len({a.offload for a in started}) == 1
    if goes_back:
        assert started[0].offload == ordered(TRAINER_PARTS)


@pytest.mark.parametrize("phase", LOSABLE)
def test_a_trainer_that_is_lost_in_any_phase_takes_the_run_back_to_its_checkpoint(
    phase: RunPhase,
) -> None:
    world = World(dataclasses.replace(BASE, checkpoint_every_steps=0))
    reach(world, phase)
    steps = world.scheduler.books.steps
    world.take(ev.TrainerLost(time_s=world.time_s, error="it died"))
    assert world.scheduler.phase is RunPhase.STARTING
    assert world.scheduler.swapper.trainer_version == 0
    assert world.scheduler.books.steps == 0
    summary = finish(world)
    recoveries = summary["recoveries"]
    assert (recoveries["trainer"], recoveries["rollbacks"]) == (1, 1)
    assert recoveries["abandoned"]["steps"] == steps
    assert summary["steps"] == BASE.steps
    back = [a for _, actions in world.lines for a in actions if isinstance(a, act.RollBack)]
    assert [(a.version, a.steps) for a in back] == [(0, steps)]


def test_a_rollback_goes_to_the_last_checkpoint_that_is_whole() -> None:
    world = World(BASE)
    reach(world, RunPhase.TRAINER_OFFLOADING)  # of the second swap: version 2 is being written
    world.take(ev.TrainerLost(time_s=world.time_s, error="it died"))
    assert world.scheduler.swapper.trainer_version == 1
    finish(world)

    world = World(BASE)
    reach(world, RunPhase.TRAINER_OFFLOADING)
    world._write_checkpoint(0)
    world.take(ev.TrainerLost(time_s=world.time_s, error="it died"))
    assert world.scheduler.swapper.trainer_version == 2
    finish(world)


def test_an_engine_that_is_known_to_be_lost_keeps_no_swap_waiting_for_its_memory() -> None:
    world = World(BASE)
    reach(world, RunPhase.TRAINING)
    lost = ev.EngineLost(time_s=world.time_s, error="it died")
    world.take(lost)
    reach(world, RunPhase.TRAINER_OFFLOADING)
    world.trainer_leak = 100
    world.ineffective.add(act.Relieve)
    while not isinstance(world._operation, act.Relieve):
        world.step_fairly()
    world._operation = None  # it asked the engine, too
    world.take(dataclasses.replace(lost, time_s=world.time_s))
    assert world.scheduler.phase is RunPhase.STARTING
    world.trainer_leak = 0
    assert finish(world)["recoveries"]["engine"] == 1


def stop(world: World, *, grace_ends: bool) -> None:
    world.take(ev.StopRequested(time_s=world.time_s, signal=15))
    if grace_ends:
        world.time_s += BASE.grace_s
        world.take(ev.TimerFired(time_s=world.time_s, timer="grace"))


def waits_for_memory() -> World:
    """A world whose trainer has been offloaded, and whose memory does not come free."""
    world = World(BASE)
    reach(world, RunPhase.TRAINER_OFFLOADING)
    world.trainer_leak = 100
    world._end_operation(0)
    assert world.scheduler.phase is RunPhase.TRAINER_OFFLOADING
    return world


def test_an_engine_lost_in_a_stop_while_memory_is_waited_for_leaves_a_checkpoint() -> None:
    world = waits_for_memory()
    stop(world, grace_ends=False)
    world.take(ev.EngineLost(time_s=world.time_s, error="it died"))
    assert world._operation == act.CloseRun(checkpoint=True, version=Version(2))


@pytest.mark.parametrize(
    "phase", [RunPhase.SLEEPING, RunPhase.WEIGHTS_WAKING, RunPhase.KV_WAKING, None]
)
def test_a_stop_whose_grace_ends_while_the_trainer_rests_leaves_a_checkpoint(
    phase: RunPhase | None,
) -> None:
    world = waits_for_memory() if phase is None else World(BASE)
    if phase is not None:
        reach(world, phase)
    stop(world, grace_ends=True)
    version = world.scheduler.swapper.trainer_version
    assert world._operation == act.CloseRun(checkpoint=True, version=version)
    world.finish_fairly()
    outcome = world.scheduler.swapper.outcome
    assert outcome is not None
    assert (outcome.status, outcome.error) == ("stopped", None)


@pytest.mark.parametrize(
    "phase", [RunPhase.TRAINING, RunPhase.TRAINER_OFFLOADING, RunPhase.PUBLISHING]
)
def test_a_trainer_that_is_lost_as_its_stop_is_cut_off_does_not_make_the_stop_a_failure(
    phase: RunPhase,
) -> None:
    world = World(BASE)
    reach(world, phase)
    stop(world, grace_ends=True)
    assert world.take(ev.TrainerLost(time_s=world.time_s, error="it was killed")) == []
    world.finish_fairly()
    outcome = world.scheduler.swapper.outcome
    assert outcome is not None
    assert outcome.status == "stopped"
    assert outcome.error is not None
    assert outcome.error.startswith(f"no checkpoint: {phase} did not end within")


def test_what_comes_in_of_a_phase_that_was_given_up_does_not_fail_a_run_that_closes() -> None:
    world = World(BASE)
    reach(world, RunPhase.TRAINER_OFFLOADING)
    world.take(ev.StopRequested(time_s=world.time_s, signal=15))
    world.take(ev.TimerFired(time_s=world.time_s + BASE.grace_s, timer="grace"))
    assert world.scheduler.phase is RunPhase.CLOSING
    version = world.scheduler.swapper.trainer_version
    late = world.scheduler.books.late_events
    for event in (
        ev.CheckpointWritten(time_s=world.time_s, version=version),
        ev.Relieved(time_s=world.time_s, remedy=Remedy.COLLECT),
    ):
        assert world.scheduler.handle(event) == []
    assert world.scheduler.books.late_events == late + 2


def test_restarts_are_bounded_and_the_run_ends_with_the_cause_of_the_last() -> None:
    world = World(dataclasses.replace(BASE, max_restarts=2))
    for incarnation in range(3):
        while world.scheduler.phase is not RunPhase.ROLLOUT:
            world.step_fairly()
        world.take(ev.EngineLost(time_s=world.time_s, incarnation=incarnation, error="it died."))
    outcome = world.scheduler.swapper.outcome
    assert outcome is not None
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert outcome.error.startswith("it died. It is not started again: there were 2 restarts")
    assert "supervision.max_restarts is 2" in outcome.error


def test_the_window_of_restarts_moves() -> None:
    restarts = Restarts(limit=2, window_s=10.0)
    assert restarts.allow(Process.ENGINE, "a", 0.0)
    assert restarts.allow(Process.TRAINER, "b", 9.0)
    assert not restarts.allow(Process.ENGINE, "a", 9.5)
    assert restarts.allow(Process.ENGINE, "a", 10.0)
    assert restarts.summary() == {
        "engine": 2,
        "trainer": 1,
        "causes": {"engine: a": 2, "trainer: b": 1},
    }


@pytest.mark.parametrize("phase", [RunPhase.ROLLOUT, RunPhase.TRAINING])
def test_a_driver_that_was_stopped_itself_blames_nobody_and_sets_its_deadline_anew(
    phase: RunPhase,
) -> None:
    world = World(BASE)
    reach(world, phase)
    timers = [a for _, actions in world.lines for a in actions if isinstance(a, act.SetTimer)]
    last = [timer for timer in timers if timer.timer != "swap"][-1]
    world.time_s = last.at_s + 2 * STOOD_STILL_S
    again = world.take(ev.TimerFired(time_s=world.time_s, timer=last.timer))
    assert world.scheduler.phase is phase
    assert [type(action) for action in again] == [act.SetTimer]
    assert isinstance(again[0], act.SetTimer)
    assert again[0].at_s > world.time_s
    assert finish(world)["recoveries"]["causes"] == {}


def test_without_restarts_a_loss_ends_the_run_as_any_fault_does() -> None:
    world = World(dataclasses.replace(BASE, max_restarts=0))
    reach(world, RunPhase.ROLLOUT)
    actions = world.take(ev.EngineLost(time_s=world.time_s, error="it died"))
    outcome = world.scheduler.swapper.outcome
    assert outcome is not None
    assert (outcome.status, outcome.error) == ("failed", "it died")
    assert [a.checkpoint for a in actions if isinstance(a, act.CloseRun)] == [False]
    assert world.scheduler.swapper.trainer_version == Version(1)


# Faults that the search must be able to find: each breaks one rule in one place.


def number_trajectories_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Buffer, "go_back", Buffer.restore)


def forget_to_restore_the_books(monkeypatch: pytest.MonkeyPatch) -> None:
    from colocate.core.books import Books

    monkeypatch.setattr(Books, "roll_back", lambda self, kept: None)


def keep_what_was_asked_of_a_lost_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RequestQueue, "give_up_all", lambda self: None)


def keep_the_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    take_back = rollback.take_back

    def unchanged(*args: Any, attempt: int, time_s: float) -> Any:
        return take_back(*args, attempt=0, time_s=time_s)

    from colocate.core import recovery

    monkeypatch.setattr(recovery, "take_back", unchanged)


def serve_without_publishing(monkeypatch: pytest.MonkeyPatch) -> None:
    from colocate.core.swap_recovery import RecoverableSwapper

    replace_engine = RecoverableSwapper._replace_engine

    def trusting(self: RecoverableSwapper, time_s: float) -> Any:
        known = self.trainer_version
        actions = replace_engine(self, time_s)
        self._weights_of = known
        return actions

    monkeypatch.setattr(RecoverableSwapper, "_replace_engine", trusting)


def play_and_finish(seed: int) -> dict[str, Any]:
    """Facts by uniform chance, which loses requests in flight more often than Hypothesis does."""
    draw = Random(seed)
    losses = draw.randint(1, 3)
    world = World(
        dataclasses.replace(
            BASE,
            group_size=draw.randint(1, 3),
            max_staleness=draw.randint(0, 2),
            max_filtered_fraction=1.0,
            checkpoint_every_steps=draw.randint(0, 2),
        )
    )
    for _ in range(draw.randint(40, 150)):
        if world.is_over or world.scheduler.phase is RunPhase.CLOSING:
            break
        if losses and draw.random() < 0.05:
            losses -= 1
            world.num_losses = 1
            draw.choice([world._lose_engine, world._lose_trainer])(0)
            if draw.random() < 0.3:
                break  # what was in flight is never answered
        facts = world.possible()
        draw.choice(facts)(draw.randrange(12))
    return finish(world)


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_lost_by_chance_the_run_completes_with_its_books_balanced(seed: int) -> None:
    assert play_and_finish(seed)["steps"] == BASE.steps


@pytest.mark.parametrize(
    "break_it",
    [
        number_trajectories_twice,
        forget_to_restore_the_books,
        keep_what_was_asked_of_a_lost_engine,
        keep_the_attempts,
        serve_without_publishing,
    ],
)
def test_the_properties_catch_a_broken_recovery(break_it, monkeypatch: pytest.MonkeyPatch) -> None:
    break_it(monkeypatch)

    def search() -> None:
        for seed in range(300):
            play_and_finish(seed)

    with pytest.raises((AssertionError, ProtocolError, KeyError)):
        search()
