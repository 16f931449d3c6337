"""What the scheduler decides in the situations that its documentation names."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.loss_cap import MAX_SURPLUS
from colocate.core.phases import SWAP, Cause, IllegalTransition, Phase, next_phase
from colocate.core.scheduler import Scheduler
from colocate.core.settings import Settings
from colocate.core.trajectory import ProtocolError
from colocate.core.types import (
    BatchId,
    Ending,
    FinishReason,
    MemorySample,
    Span,
    TrajectoryId,
    Version,
)
from tests.core.world import World


def small(**changes: object) -> Settings:
    base = Settings(steps=2, group_size=2, groups_per_step=1, max_staleness=1)
    return dataclasses.replace(base, **changes)  # type: ignore[arg-type]


def in_rollout(settings: Settings) -> World:
    world = World(settings)
    world._end_operation(0)
    assert world.scheduler.phase is Phase.ROLLOUT
    return world


def until(world: World, phase: Phase) -> None:
    """Lets everything answer, in order, until the run is in ``phase``."""
    for _ in range(1000):
        if world.scheduler.phase is phase:
            return
        if world._operation is not None:
            world._end_operation(0)
        elif world._wants_memory:
            world._sample_memory(0)
        else:
            world._progress_one()
    raise AssertionError(f"never came to {phase}")


def test_the_phases_follow_each_other_as_the_architecture_says() -> None:
    ring = [Phase.ROLLOUT, *SWAP, Phase.ROLLOUT]
    assert [str(phase) for phase in SWAP] == [
        "parking",
        "sleeping",
        "trainer_waking",
        "training",
        "trainer_offloading",
        "weights_waking",
        "publishing",
        "kv_waking",
    ]
    for left, entered in itertools.pairwise(ring):
        cause = Cause.SWAP_DUE if left is Phase.ROLLOUT else Cause.DONE
        assert next_phase(left, cause) is entered
    assert next_phase(Phase.STARTING, Cause.RESUMED) is Phase.WEIGHTS_WAKING


@pytest.mark.parametrize(
    ("phase", "cause"),
    [
        (Phase.ROLLOUT, Cause.DONE),
        (Phase.PARKING, Cause.SWAP_DUE),
        (Phase.CLOSED, Cause.FAULT),
        (Phase.FAILED, Cause.CLOSE),
    ],
)
def test_a_transition_that_the_table_lacks_names_the_phase_and_what_would_do(
    phase: Phase, cause: Cause
) -> None:
    with pytest.raises(IllegalTransition, match=f"phase {phase} cannot be left"):
        next_phase(phase, cause)


def test_at_one_version_the_order_of_admission_decides() -> None:
    world = in_rollout(small(max_staleness=2, max_inflight=1, steps=4))
    first = [i for i, a in world.actors.items() if a.is_acting]
    for identifier in first:
        world._answer(identifier, "turn", 0)
    inflight = [i for i, a in world.actors.items() if a.request]
    assert inflight == [first[0]]
    world._end_request(first[0], 2)
    world._answer(first[0], "turn", 0)
    # It has tokens by now, but of the engine's own version.
    world._end_request(first[1], 2)
    assert world.actors[first[0]].request is not None


def test_requests_in_flight_never_exceed_the_limit() -> None:
    world = in_rollout(small(max_inflight=3))
    for identifier in list(world.actors):
        world._answer(identifier, "turn", 0)
    assert sum(a.request is not None for a in world.actors.values()) == 3


def test_admission_stops_where_nothing_more_could_be_trained() -> None:
    world = in_rollout(small(steps=1, max_staleness=3))
    assert len(world.actors) == 2


def test_a_run_that_overdraws_its_budget_once_started_ends_with_what_to_change() -> None:
    scheduler = World(small()).scheduler
    held = {"engine": 90 << 20, "trainer": 30 << 20}
    overdrawn = MemorySample(used=120 << 20, total=100 << 20, tenants=held)
    scheduler.handle(ev.PhaseEnded(time_s=1.0, phase=Phase.STARTING, memory=overdrawn))
    outcome = scheduler.swapper.outcome
    assert outcome is not None
    assert outcome.status == "failed"
    assert "raise it, or lower inference.kv_cache_memory_bytes" in str(outcome.error)
    assert "now: 120 of 100 MiB (engine 90 MiB, trainer 30 MiB)" in str(outcome.error)


def test_a_late_answer_of_an_ended_trajectory_is_counted_and_not_used() -> None:
    world = in_rollout(small())
    until(world, Phase.TRAINER_OFFLOADING)
    ended = 0
    assert (
        world.scheduler.handle(
            ev.TrajectoryFinished(
                time_s=world._tick(), trajectory=ended, attempt=0, reward=1.0, busy_s=0.0, base="?"
            )
        )
        == []
    )
    assert world.scheduler.summary()["late_events"] == 1


def test_a_refused_event_tells_the_trajectorys_story() -> None:
    world = in_rollout(small())
    identifier = next(iter(world.actors))
    world._answer(identifier, "turn", 0)
    with pytest.raises(ProtocolError, match=r"cannot be turn ready.*turn ready at"):
        world.scheduler.handle(
            ev.TurnReady(
                time_s=world._tick(),
                trajectory=identifier,
                attempt=0,
                num_context_tokens=1,
                busy_s=0.0,
                base=world.actors[identifier].content,
                digest="x",
            )
        )


def test_content_that_changed_between_two_events_is_refused() -> None:
    world = in_rollout(small())
    identifier = next(iter(world.actors))
    world._answer(identifier, "turn", 0)
    actor = world.actors[identifier]
    actor.content = "tampered"
    with pytest.raises(ProtocolError, match="behind the scheduler's back"):
        world._end_request(identifier, 2)


def test_tokens_of_another_version_than_the_engines_are_refused() -> None:
    world = in_rollout(small())
    identifier = next(iter(world.actors))
    world._answer(identifier, "turn", 0)
    actor = world.actors[identifier]
    assert actor.request is not None
    with pytest.raises(ProtocolError, match="version 0"):
        world.scheduler.handle(
            ev.RequestEnded(
                time_s=world._tick(),
                trajectory=identifier,
                attempt=0,
                request=actor.request,
                finish_reason=FinishReason.STOP,
                spans=(Span(version=Version(1), length=1),),
                num_cached_tokens=0,
                base=actor.content,
                digest="x",
            )
        )


def test_a_late_answer_of_a_request_given_up_is_counted_and_not_used() -> None:
    """Its trajectory has begun again since; only the attempt tells the answer from a good one."""
    world = in_rollout(small(steps=4))
    identifier = next(iter(world.actors))
    play_turn(world, identifier)
    answered = next(e for e, _ in reversed(world.lines) if isinstance(e, ev.RequestEnded))
    trajectory = world.scheduler.buffer.get(identifier)
    assert trajectory is not None
    world.scheduler.buffer.restart(trajectory, world.time_s)
    generated = world.scheduler.books.tokens["generated"]
    num_tokens = sum(span.length for span in answered.spans)
    world.scheduler.handle(dataclasses.replace(answered, time_s=world._tick()))
    assert (trajectory.num_sampled_tokens, trajectory.digest) == (0, "")
    summary = world.scheduler.summary()
    assert summary["late_events"] == 1
    assert summary["tokens"]["generated"] == generated + num_tokens
    assert summary["tokens"]["discarded"] == num_tokens > 0


def test_a_batch_is_acknowledged_once() -> None:
    world = in_rollout(small())
    until(world, Phase.TRAINING)
    world._end_operation(0)
    done = next(e for e, _ in reversed(world.lines) if isinstance(e, ev.BatchTrained))
    with pytest.raises(ProtocolError, match="not leased"):
        world.scheduler.handle(dataclasses.replace(done, time_s=world._tick()))
    with pytest.raises(ProtocolError, match="not leased"):
        world.scheduler.handle(dataclasses.replace(done, time_s=world._tick(), batch=BatchId(7)))


def test_a_signal_in_a_step_waits_for_its_end() -> None:
    world = in_rollout(small(steps=5))
    until(world, Phase.TRAINING)
    world.take(ev.StopRequested(time_s=world._tick(), signal=15))
    assert world.scheduler.phase is Phase.TRAINING
    actions = world.lines
    world._end_operation(0)
    assert world.scheduler.phase is Phase.CLOSING
    closing = next(a for a in actions[-1][1] if isinstance(a, act.CloseRun))
    assert closing.version == 1
    assert closing.checkpoint
    outcome = world.scheduler.swapper.outcome
    assert outcome is not None
    assert (outcome.status, outcome.signal) == ("stopped", 15)


def test_too_many_losses_end_the_run_and_name_the_commonest_reason() -> None:
    world = in_rollout(small(max_filtered_fraction=0.5))
    for _ in range(2 * MAX_SURPLUS):
        assert world.scheduler.swapper.outcome is None
        identifier = next(i for i, a in world.actors.items() if a.is_acting)
        world._answer(identifier, "filter", 0)
    outcome = world.scheduler.swapper.outcome
    assert outcome is not None
    assert outcome.status == "failed"
    assert "it was unlucky" in str(outcome.error)


def test_a_rollout_in_which_nothing_happens_ends_with_who_waits_for_what() -> None:
    world = in_rollout(small(idle_timeout_s=10.0))
    timer = next(
        a
        for _, line in world.lines
        for a in line
        if isinstance(a, act.SetTimer) and a.timer.startswith("idle")
    )
    world.take(ev.TimerFired(time_s=timer.at_s, timer=timer.timer))
    outcome = world.scheduler.swapper.outcome
    assert outcome is not None
    assert "4 in environment" in str(outcome.error)


def test_the_last_training_phase_publishes_and_leaves_a_checkpoint() -> None:
    world = World(small())
    world.finish_fairly()
    kinds = [a for _, line in world.lines for a in line]
    last_publish = [a for a in kinds if isinstance(a, act.Publish)][-1]
    last_offload = [a for a in kinds if isinstance(a, act.OffloadTrainer)][-1]
    assert last_publish.version == 2
    assert last_offload.checkpoint
    assert world.scheduler.summary()["versions"] == {"trainer": 2, "engine": 2}


def test_writing_a_checkpoint_has_the_deadline_of_training() -> None:
    settings = small(checkpoint_every_steps=2, phase_timeout_s=7.0, training_timeout_s=70.0)
    world = World(settings)
    world.finish_fairly()
    limits = {
        action.checkpoint: timer.at_s - event.time_s
        for event, line in world.lines
        for action in line
        if isinstance(action, act.OffloadTrainer)
        for timer in line
        if isinstance(timer, act.SetTimer)
    }
    assert limits == {False: 7.0, True: 70.0}


def test_a_resume_publishes_before_anything_is_generated_and_redraws_what_was_pending() -> None:
    settings = small(steps=4)
    resumed = Scheduler(settings)
    cursor = ev.PromptCursor(next_position=9, pending=(4, 7))  # type: ignore[arg-type]
    start = resumed.handle(
        ev.RunStarted(time_s=0.0, settings=settings, version=Version(2), cursor=cursor)
    )
    assert any(isinstance(a, act.StartPorts) and a.version == 2 for a in start)
    actions = resumed.handle(ev.PhaseEnded(time_s=1.0, phase=Phase.STARTING))
    assert resumed.phase is Phase.PUBLISHING
    assert [a.group for a in actions if isinstance(a, act.StartTrajectory)][::2] == [4, 7]


def test_a_group_whose_every_member_is_masked_is_replaced() -> None:
    world = in_rollout(small(steps=1))
    for identifier in list(world.actors):
        world._answer(identifier, "turn", 0)
        world._end_request(identifier, 2)
        world._answer(identifier, "mask", 0)
    assert len(world.actors) == 2
    summary = world.scheduler.summary()
    assert summary["trajectories"]["masked"] == 2
    assert summary["trajectories"]["admitted"] == 4
    world.finish_fairly()
    world.auditor.check_summary(world.scheduler.summary())
    assert world.auditor.violations == []


def test_a_lost_member_is_refilled_in_its_group() -> None:
    world = in_rollout(small(steps=1, max_filtered_fraction=1.0))
    lost = next(iter(world.actors))
    world._answer(lost, "filter", 0)
    assert lost not in world.actors
    assert len(world.actors) == 2
    ended = [a for a in world.lines[-1][1] if isinstance(a, act.EndTrajectory)]
    assert [a.ending for a in ended] == [Ending.FILTERED]
    started = [a for a in world.lines[-1][1] if isinstance(a, act.StartTrajectory)]
    assert [a.group for a in started] == [0]


# The end of a run, and ends before it


def test_groups_about_to_be_too_old_do_not_keep_the_last_steps_from_being_filled() -> None:
    """Three groups that must all train at version 4 fill one of the three steps that are left."""
    settings = small(
        steps=7, group_size=1, groups_per_step=1, max_staleness=4, swap_interval=2, max_inflight=9
    )
    world = in_rollout(settings)
    old = list(world.actors)
    assert len(old) == 5
    for identifier in old:
        world._answer(identifier, "turn", 0)
    for identifier in old:
        world._end_request(identifier, 2)
    for identifier in old[:2]:
        world._answer(identifier, "finish", 0)
    until_operations_end(world)
    young = [i for i in world.actors if i not in old]
    for identifier in young:
        world._answer(identifier, "turn", 0)
        world._end_request(identifier, 2)
        world._answer(identifier, "finish", 0)
    until_operations_end(world)
    assert world.scheduler.swapper.trainer_version == 4
    world.finish_fairly()
    assert world.scheduler.summary()["steps"] == 7


def until_operations_end(world: World) -> None:
    """Lets the machinery answer until the run is in its rollout; trajectories do nothing."""
    while world._operation is not None:
        world._end_operation(0)
    assert world.scheduler.phase is Phase.ROLLOUT


def closing_of(world: World) -> act.CloseRun:
    return next(a for a in world.lines[-1][1] if isinstance(a, act.CloseRun))


def test_a_signal_in_the_rollout_parks_first_so_that_the_checkpoint_holds_what_was_sampled() -> (
    None
):
    world = in_rollout(small(steps=5))
    until(world, Phase.TRAINING)
    until(world, Phase.ROLLOUT)
    [identifier, *_] = [i for i, a in world.actors.items() if a.is_acting]
    world._answer(identifier, "turn", 0)
    assert world.actors[identifier].request
    world.take(ev.StopRequested(time_s=world._tick(), signal=15))
    assert world.scheduler.phase is Phase.PARKING
    for waiting in [i for i, a in world.actors.items() if a.request]:
        world._end_request(waiting, 3)
    world._end_operation(0)
    assert world.scheduler.phase is Phase.CLOSING
    assert closing_of(world).checkpoint
    record = world.scheduler.buffer.get(identifier)
    assert record is not None
    assert record.num_sampled_tokens == 3
    world._end_operation(0)
    outcome = world.scheduler.swapper.outcome
    assert outcome is not None
    assert (outcome.status, outcome.error) == ("stopped", None)


def test_an_engine_that_cannot_be_parked_does_not_cost_the_checkpoint_of_a_signal() -> None:
    world = in_rollout(small(steps=5))
    until(world, Phase.TRAINING)
    until(world, Phase.ROLLOUT)
    world.take(ev.StopRequested(time_s=world._tick(), signal=15))
    world.time_s += world.scheduler.settings.grace_s
    world.take(ev.TimerFired(time_s=world.time_s, timer="grace"))
    assert world.scheduler.phase is Phase.CLOSING
    assert closing_of(world).checkpoint


@pytest.mark.parametrize("sleep", ["0", "2"])
def test_a_signal_while_parking_closes_before_anything_is_trained(sleep: str) -> None:
    world = in_rollout(small(steps=5, sleep=sleep))
    until(world, Phase.TRAINING)
    until(world, Phase.PARKING)
    world.take(ev.StopRequested(time_s=world._tick(), signal=15))
    for identifier in [i for i, a in world.actors.items() if a.request]:
        world._end_request(identifier, 0)
    world._end_operation(0)
    assert world.scheduler.phase is Phase.CLOSING
    assert closing_of(world).checkpoint
    assert world.scheduler.summary()["steps"] == 1


def test_a_signal_while_a_run_starts_closes_it_at_once() -> None:
    settings = small(steps=4)
    resumed = Scheduler(settings)
    resumed.handle(ev.RunStarted(time_s=0.0, settings=settings, version=Version(2)))
    actions = resumed.handle(ev.StopRequested(time_s=0.5, signal=15))
    assert resumed.phase is Phase.CLOSING
    [closing] = [a for a in actions if isinstance(a, act.CloseRun)]
    assert not closing.checkpoint
    assert resumed.handle(ev.PhaseEnded(time_s=1.0, phase=Phase.STARTING)) == []


def test_a_resume_beyond_the_last_step_is_done_once_its_weights_are_published() -> None:
    settings = small(steps=2)
    resumed = Scheduler(settings)
    resumed.handle(ev.RunStarted(time_s=0.0, settings=settings, version=Version(3)))
    resumed.handle(ev.PhaseEnded(time_s=1.0, phase=Phase.STARTING))
    resumed.handle(ev.PhaseEnded(time_s=2.0, phase=Phase.PUBLISHING, version=Version(3)))
    resumed.handle(ev.PhaseEnded(time_s=3.0, phase=Phase.KV_WAKING))
    assert resumed.phase is Phase.CLOSING
    assert resumed.swapper.outcome is not None
    assert resumed.swapper.outcome.status == "completed"


@pytest.mark.parametrize("phase", [Phase.SLEEPING, Phase.TRAINING])
def test_work_that_ends_after_the_grace_of_a_signal_is_late_and_no_contradiction(
    phase: Phase,
) -> None:
    world = in_rollout(small(steps=5))
    until(world, phase)
    world.take(ev.StopRequested(time_s=world._tick(), signal=15))
    unheard = world._operation
    world.time_s += 20.0
    world.take(ev.TimerFired(time_s=world.time_s, timer="grace"))
    assert world.scheduler.phase is Phase.CLOSING
    closing, world._operation = world._operation, unheard
    world._end_operation(0)
    assert world.scheduler.summary()["late_events"] == 1
    world._operation = closing
    world._end_operation(0)
    outcome = world.scheduler.swapper.outcome
    assert outcome is not None
    assert (outcome.status, outcome.signal) == ("stopped", 15)


# Who goes first, what is held, and what is counted


def play_turn(world: World, identifier: TrajectoryId, answer: str | None = None) -> None:
    """One whole turn, and the environment's answer to it where one is given."""
    world._answer(identifier, "turn", 0)
    world._end_request(identifier, 2)
    if answer is not None:
        world._answer(identifier, answer, 0)


def one_at_a_time(**changes: object) -> World:
    """Groups of one, four of them resident, one request at the engine."""
    settings = small(steps=9, group_size=1, max_staleness=3, max_inflight=1)
    return in_rollout(dataclasses.replace(settings, **changes))  # type: ignore[arg-type]


def test_of_equally_old_turns_the_one_that_a_park_cut_goes_first() -> None:
    world = one_at_a_time()
    done, between_turns, cut, _ = world.actors
    play_turn(world, done)
    play_turn(world, between_turns)
    world._answer(cut, "turn", 0)
    world._answer(between_turns, "turn", 0)
    world._answer(done, "finish", 0)
    assert world.scheduler.phase is Phase.PARKING
    world._end_request(cut, 1)
    until_operations_end(world)
    assert world.actors[cut].request is not None
    world._end_request(cut, 2)
    assert world.actors[between_turns].request is not None


def test_a_partial_of_an_older_version_goes_before_what_has_just_begun() -> None:
    world = one_at_a_time()
    begun_later, done, *_ = world.actors
    old = max(world.actors)
    play_turn(world, old)
    play_turn(world, done, "finish")
    until_operations_end(world)
    world._answer(max(world.actors), "turn", 0)
    world._answer(begun_later, "turn", 0)
    world._answer(old, "turn", 0)
    world._end_request(max(world.actors), 2)
    assert world.actors[old].request is not None


def test_a_request_that_turned_back_at_the_gate_has_read_nothing_again() -> None:
    world = one_at_a_time(max_inflight=2)
    done, cut, other, _ = world.actors
    play_turn(world, done)
    world._answer(cut, "turn", 0)
    world._answer(done, "finish", 0)
    world._end_request(cut, 1)
    until_operations_end(world)
    play_turn(world, other, "finish")
    assert world.scheduler.phase is Phase.PARKING
    world._end_request(cut, 0)
    assert world.scheduler.summary()["tokens"]["reprefilled"] == 0
    until_operations_end(world)
    world._end_request(cut, 2)
    assert world.scheduler.summary()["tokens"]["reprefilled"] > 0


def hold_for_one_about_to_expire(**changes: object) -> tuple[World, TrajectoryId]:
    """A swap is due at version 1, and would expire a partial of version 0."""
    world = one_at_a_time(max_staleness=1, **changes)
    done, old = world.actors
    play_turn(world, old)
    play_turn(world, done, "finish")
    until_operations_end(world)
    play_turn(world, max(world.actors), "finish")
    return world, old


def test_a_swap_is_held_until_the_partial_that_it_would_expire_has_finished() -> None:
    world, old = hold_for_one_about_to_expire(expiry_grace_s=5.0)
    assert world.scheduler.phase is Phase.ROLLOUT
    world._answer(old, "finish", 0)
    assert world.scheduler.phase is Phase.PARKING
    until_operations_end(world)
    assert world.scheduler.summary()["staleness"]["max_trained_lag"] == 1


def test_a_held_swap_goes_on_after_its_grace_and_expires_the_partial() -> None:
    world, old = hold_for_one_about_to_expire(expiry_grace_s=5.0)
    world._fire_swap_timer(0)
    until_operations_end(world)
    assert old not in world.actors
    assert world.scheduler.summary()["trajectories"]["expired"] == 1


def test_a_stale_partial_that_is_restarted_forgets_its_tokens_and_stays_resident() -> None:
    world, old = hold_for_one_about_to_expire(on_stale="restart")
    until_operations_end(world)
    assert world.actors[old].attempt == 1
    summary = world.scheduler.summary()
    assert summary["restarts"] == 1
    assert summary["tokens"]["discarded"] == 3
    assert summary["trajectories"]["expired"] == 0


def test_an_environment_lost_at_its_reset_has_made_no_step() -> None:
    world = in_rollout(small(max_filtered_fraction=1.0))
    world._answer(next(iter(world.actors)), "filter", 0)
    assert world.scheduler.summary()["environment"] == {
        "steps": 0,
        "busy_s": 0.1,
        "hidden_s": 0.0,
        "failures": 1,
    }


# What has nothing to train


def test_a_truncated_trajectory_is_counted_and_masked_where_the_settings_say_so() -> None:
    for masks in (True, False):
        world = in_rollout(small(mask_truncated=masks))
        first = next(iter(world.actors))
        world._answer(first, "turn", 0)
        world._end_request(first, 2)
        world.take(
            ev.TrajectoryFinished(
                time_s=world._tick(),
                trajectory=first,
                attempt=0,
                reward=1.0,
                busy_s=0.0,
                base=world.actors[first].content,
                truncated="rollout.max_turns",
            )
        )
        summary = world.scheduler.summary()
        assert summary["truncated"] == {"rollout.max_turns": 1}
        reasons = {"masked: truncated: rollout.max_turns": 1} if masks else {}
        assert summary["reasons"] == reasons
        assert summary["trajectories"]["masked"] == masks


def test_a_group_whose_members_are_all_masked_or_sampled_nothing_ends_and_is_not_leased() -> None:
    world = in_rollout(small(steps=1))
    masked, empty = world.actors
    for identifier in (masked, empty):
        world._answer(identifier, "turn", 0)
    world._end_request(masked, 2)
    world._answer(masked, "mask", 0)
    request, base = world.actors[empty].request, world.actors[empty].content
    assert request is not None
    world.take(
        ev.RequestEnded(
            time_s=world._tick(),
            trajectory=empty,
            attempt=0,
            request=request,
            finish_reason=FinishReason.STOP,
            spans=(),
            num_cached_tokens=0,
            base=base,
            digest=base,
        )
    )
    world.actors[empty].request = None
    world.take(
        ev.TrajectoryFinished(
            time_s=world._tick(), trajectory=empty, attempt=0, reward=1.0, busy_s=0.0, base=base
        )
    )
    summary = world.scheduler.summary()
    assert summary["trajectories"]["masked"] == 2
    assert summary["reasons"]["masked: its group has no trainable token"] == 1
    assert world.scheduler.phase is Phase.ROLLOUT
    # Another prompt takes its place, and the run completes.
    world.finish_fairly()
    world.auditor.check_summary(world.scheduler.summary())
    assert world.auditor.violations == []


# Spares


def one_of_two(**changes: object) -> World:
    """Groups of one slot and one spare: trajectories 0 and 1, 2 and 3."""
    return in_rollout(small(group_size=1, redundant_per_group=1, **changes))


def play_first_turn(world: World, *identifiers: TrajectoryId) -> None:
    for identifier in identifiers:
        world._answer(identifier, "turn", 0)
        world._end_request(identifier, 2)


def test_the_first_to_finish_holds_the_slot_and_the_spare_is_cancelled_at_once() -> None:
    world = one_of_two(max_inflight=4)
    first, spare, *_ = world.actors
    play_first_turn(world, spare)
    world._answer(spare, "finish", 0)
    assert first not in world.actors
    summary = world.scheduler.summary()
    assert summary["reasons"] == {"cancelled: spare no longer needed": 1}
    assert summary["redundancy"]["cancelled"] == 1
    assert summary["redundancy"]["mean_tokens_cancelled"] == 0


def test_a_masked_member_holds_a_slot_and_a_group_of_none_but_masked_ends() -> None:
    world = one_of_two()
    first, spare, *_ = world.actors
    play_first_turn(world, first)
    world._answer(first, "mask", 0)
    assert spare not in world.actors
    counts = world.scheduler.summary()["trajectories"]
    assert (counts["masked"], counts["cancelled"]) == (1, 1)
    world.finish_fairly()
    assert world.auditor.violations == []


def test_a_lost_member_is_refilled_only_where_no_spare_can_take_its_slot() -> None:
    world = one_of_two(max_filtered_fraction=1.0)
    first, spare, *_ = world.actors
    world._answer(first, "filter", 0)
    assert len(world.actors) == 3
    world._answer(spare, "filter", 0)
    assert len(world.actors) == 3


def test_parking_does_not_wait_for_a_request_whose_trajectory_was_cancelled() -> None:
    world = one_of_two()
    first, _, other, late = world.actors
    play_first_turn(world, first, other)
    world._answer(late, "turn", 0)
    assert world.actors[late].request is not None
    world._answer(first, "finish", 0)
    assert world.scheduler.phase is Phase.PARKING
    world._end_operation(0)
    assert world.scheduler.phase is Phase.PARKING, "a request is still in flight"
    world._answer(other, "finish", 0)
    assert late not in world.actors
    assert world.scheduler.phase is not Phase.PARKING
    world._answer_late(0)
    summary = world.scheduler.summary()
    assert summary["late_events"] == 1
    assert summary["tokens"]["generated"] > summary["tokens"]["discarded"] > 0
    world.finish_fairly()
    world.auditor.check_summary(world.scheduler.summary())
    assert world.auditor.violations == []
