"""Evaluations: when they are due, what they hold, what ends them, and which checkpoint is best."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.deadlines import STOOD_STILL_S
from colocate.core.departure import Departure
from colocate.core.evaluation import Evaluations
from colocate.core.phases import Phase
from colocate.core.settings import Settings
from colocate.core.trajectory import ProtocolError
from colocate.core.types import GroupId, Span, Version
from tests.core.test_invariants import play, worlds
from tests.core.test_scheduler import in_rollout, small, until
from tests.core.world import Saved, World

EVALUATED = {"eval_every_steps": 1, "eval_num_samples": 2}


def evaluated_versions(world: World) -> list[int]:
    return [a.version for _, line in world.lines for a in line if isinstance(a, act.Evaluate)]


def finish(world: World) -> None:
    world.finish_fairly()
    outcome = world.scheduler.swapper.outcome
    assert outcome is not None
    assert outcome.status == "completed", outcome.error
    world.auditor.check_summary(world.scheduler.summary())
    assert world.auditor.violations == []


@pytest.mark.parametrize(
    ("steps", "every", "before", "expected"),
    [
        (4, 2, True, [0, 2, 4]),
        (4, 2, False, [2, 4]),
        (5, 2, True, [0, 2, 4, 5]),
        (3, 10, True, [0, 3]),
        (3, 0, True, []),
    ],
)
def test_an_evaluation_comes_before_the_first_step_every_so_many_and_at_the_end(
    steps: int, every: int, before: bool, expected: list[int]
) -> None:
    settings = small(
        steps=steps, eval_every_steps=every, eval_before_first_step=before, eval_num_samples=2
    )
    world = World(settings)
    finish(world)
    assert evaluated_versions(world) == expected


def test_a_swap_that_is_due_waits_for_the_evaluation_and_comes_as_soon_as_it_has_ended() -> None:
    world = in_rollout(small(**EVALUATED))
    evaluation = world._evaluation
    assert evaluation is not None
    while world._progress_one():
        pass
    assert world.scheduler.phase is Phase.ROLLOUT
    while world._evaluation is not None:
        assert world.scheduler.phase is Phase.ROLLOUT
        world._go_on_evaluating(2)
    assert world.scheduler.phase is Phase.PARKING
    assert world.auditor.violations == []


def test_the_deadline_lets_go_of_the_swap_and_what_was_scored_is_told_later() -> None:
    world = in_rollout(small(**EVALUATED))
    while world._progress_one():
        pass
    world._go_on_evaluating(2)
    world._fire_evaluation_timer(0)
    assert world.scheduler.phase is Phase.PARKING
    world._tell_of_cut(0)
    books = world.scheduler.books.evaluations
    assert books.samples == {"scored": 1, "cut": 1}
    assert books.cut == {"eval.timeout_s = 600.0": 1}
    finish(world)
    # Half an evaluation is compared with none.
    assert 0 not in [result["step"] for result in books.results]
    assert len(books.results) == books.num_ended - 1


def test_a_driver_that_was_stopped_beyond_the_deadline_sets_it_anew() -> None:
    world = in_rollout(small(**EVALUATED))
    world.time_s = world._evaluation_timers[0][0] + 2 * STOOD_STILL_S
    world._fire_evaluation_timer(0)
    assert world._evaluation is not None
    assert [at_s for at_s, _ in world._evaluation_timers] == [world.time_s + 600.0]
    world._fire_evaluation_timer(0)
    assert world.scheduler.books.evaluations.cut == {"eval.timeout_s = 600.0": 1}


def test_a_deadline_at_the_end_of_the_run_ends_the_run() -> None:
    world = in_rollout(small(steps=1, **EVALUATED, eval_before_first_step=False))
    until(world, Phase.KV_WAKING)
    world._end_operation(0)
    assert world.scheduler.phase is Phase.ROLLOUT
    assert world._evaluation is not None
    world._fire_evaluation_timer(0)
    assert world.scheduler.phase is Phase.CLOSING
    world._tell_of_cut(0)
    finish(world)
    assert world.scheduler.books.evaluations.samples["cut"] == 2


@pytest.mark.parametrize("steps", [1, 3])
def test_one_that_a_loss_cut_is_done_again_though_its_end_is_told_in_the_next_rollout(
    steps: int,
) -> None:
    before = steps > 1
    settings = small(
        steps=steps,
        **EVALUATED,
        eval_before_first_step=before,
        max_restarts=1,
        restart_window_s=60.0,
    )
    world = in_rollout(settings)
    if not before:
        until(world, Phase.KV_WAKING)
        world._end_operation(0)
    assert world._evaluation is not None
    version = world._evaluation.version
    world._lose_engine(0)
    until(world, Phase.ROLLOUT)
    assert world._evaluation is None
    while world._progress_one():
        pass
    assert world.scheduler.phase is Phase.ROLLOUT
    world._tell_of_cut(0)
    assert world._evaluation is not None
    finish(world)
    assert version in [result["step"] for result in world.scheduler.books.evaluations.results]
    assert world.auditor.violations == []


def test_nothing_is_admitted_or_generated_while_the_last_evaluation_is_waited_for() -> None:
    world = in_rollout(small(steps=1, max_staleness=2, **EVALUATED, eval_before_first_step=False))
    until(world, Phase.KV_WAKING)
    before = len(world.lines)
    world._end_operation(0)
    finish(world)
    later = [a for _, line in world.lines[before:] for a in line]
    assert not [a for a in later if isinstance(a, act.StartTrajectory | act.SubmitRequest)]
    assert [a for a in later if isinstance(a, act.Evaluate)]


def test_its_requests_share_the_engines_limit_and_go_first() -> None:
    world = in_rollout(small(eval_every_steps=1, eval_num_samples=3, max_inflight=2))
    evaluation = world._evaluation
    assert evaluation is not None
    for sample in range(3):
        world._answer_sample(sample, "turn")
    assert set(evaluation.inflight) == {0, 1}
    world._progress_one()  # a trajectory wants its turn, too
    assert all(actor.request is None for actor in world.actors.values())
    world._end_evaluation_request(0, 0)
    assert set(evaluation.inflight) == {1, 2}
    world._end_evaluation_request(1, 0)
    assert sum(actor.request is not None for actor in world.actors.values()) == 1
    assert world.scheduler.requests.num_inflight == 2
    finish(world)


def test_what_an_evaluation_does_is_in_no_figure_of_training() -> None:
    apart = World(small(steps=3))
    evaluated = World(small(steps=3, **EVALUATED))
    finish(apart)
    finish(evaluated)
    one, other = apart.scheduler.summary(), evaluated.scheduler.summary()
    assert one.pop("eval") is None
    assert other.pop("eval")["samples"] == {"scored": 8, "lost": 0, "cut": 0}
    for name in ("trajectories", "tokens", "staleness", "partials", "reward", "late_events"):
        assert one[name] == other[name]
    assert apart.scheduler.cursor == evaluated.scheduler.cursor


def test_what_an_earlier_life_has_evaluated_is_not_evaluated_again() -> None:
    settings = small(steps=4, eval_every_steps=2, eval_num_samples=1)
    world = World(settings)
    saved = Saved(version=Version(2), cursor=ev.PromptCursor(next_position=GroupId(4)))
    for evaluated, expected in ((None, [2, 4]), (2, [4])):
        again = World(settings, origin=saved, evaluated=evaluated)
        finish(again)
        assert evaluated_versions(again) == expected
    finish(world)


def test_tokens_of_another_version_are_refused() -> None:
    world = in_rollout(small(**EVALUATED))
    evaluation = world._evaluation
    assert evaluation is not None
    world._answer_sample(0, "turn")
    [(sample, request)] = evaluation.inflight.items()
    event = ev.EvaluationRequestEnded(
        time_s=world.time_s,
        version=Version(0),
        sample=sample,
        request=request,
        spans=(Span(version=Version(1), length=2),),
    )
    with pytest.raises(ProtocolError, match="version 0 is being evaluated"):
        world.scheduler.handle(event)


@pytest.mark.parametrize(("scored", "lost"), [(1, 0), (2, 1), (0, 0)])
def test_an_evaluation_that_does_not_account_for_each_sample_is_refused(
    scored: int, lost: int
) -> None:
    world = in_rollout(small(**EVALUATED))
    event = ev.EvaluationEnded(
        time_s=world.time_s,
        version=Version(0),
        num_scored=scored,
        lost={"gone": lost} if lost else {},
    )
    with pytest.raises(ProtocolError, match="accounts for"):
        world.scheduler.handle(event)


# The best checkpoint


def test_each_evaluation_has_a_checkpoint_which_it_rates() -> None:
    world = World(small(steps=4, eval_every_steps=2, eval_num_samples=1, keep_best=True))
    finish(world)
    saved = [
        action.version
        for _, line in world.lines
        for action in line
        if isinstance(action, act.OffloadTrainer) and action.checkpoint
    ]
    assert saved == [2, 4]
    assert [(r.version, r.by) for r in world.ratings] == [(2, "eval/pass@1"), (4, "eval/pass@1")]


def test_without_evaluations_a_checkpoint_is_rated_by_the_mean_reward_of_its_steps() -> None:
    settings = small(steps=4, checkpoint_every_steps=2, keep_best=True, max_staleness=0)
    world = World(settings, fair_reward=lambda t: t)
    finish(world)
    rewards = world.scheduler.books.rewards.between(Version(0), Version(4))
    assert len(rewards) == 4
    assert [(r.version, r.by) for r in world.ratings] == [
        (2, "train/reward_mean"),
        (4, "train/reward_mean"),
    ]
    assert [r.value for r in world.ratings] == pytest.approx(
        [sum(rewards[:2]) / 2, sum(rewards[2:]) / 2]
    )


def test_nothing_is_rated_unless_asked_for() -> None:
    world = World(small(steps=2, checkpoint_every_steps=1, **EVALUATED))
    finish(world)
    assert world.ratings == []


# Properties


@given(worlds(), st.data(), st.integers(0, 150))
def test_an_evaluation_is_begun_once_a_version_and_in_the_rollout_alone(
    world: World, data: st.DataObject, num_facts: int
) -> None:
    play(world, data, num_facts)
    world.finish_fairly()
    versions = evaluated_versions(world)
    assert versions == sorted(set(versions))
    run = world.scheduler.settings
    due = {v for v in range(1, run.steps + 1) if run.eval_every_steps and v == run.steps}
    assert due <= set(versions)
    tally = world.scheduler.books.evaluations
    num_known = tally.samples.total()
    assert num_known == tally.num_ended * run.eval_num_samples
    assert tally.num_ended + len(world._untold) == len(versions)


@pytest.mark.parametrize("what", ["swap under it", "beyond the limit", "twice", "other version"])
def test_the_audit_finds_what_must_not_happen(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if what == "swap under it":
        monkeypatch.setattr(Evaluations, "holds_the_swap", False)
    elif what == "beyond the limit":
        from colocate.core.admission import RequestQueue

        monkeypatch.setattr(RequestQueue, "lend", lambda self, request: None)
    elif what == "other version":
        begin = Evaluations.begin
        monkeypatch.setattr(
            Evaluations, "begin", lambda self, v, time_s: begin(self, Version(v + 1), time_s)
        )
    settings = Settings(
        steps=2,
        group_size=2,
        groups_per_step=1,
        max_staleness=1,
        max_inflight=1,
        eval_every_steps=1,
        eval_num_samples=3,
    )
    world = in_rollout(settings)
    if what == "twice":
        world.auditor.feed(
            ev.TimerFired(time_s=world.time_s, timer="?"),
            [act.Evaluate(version=Version(0), num_samples=3)],
        )
    for _ in range(60):
        if world.auditor.violations or world.is_over:
            break
        evaluation = world._evaluation
        if evaluation is not None and evaluation.acting and what != "swap under it":
            world._answer_sample(min(evaluation.acting), "turn")
        if not world._progress_one():
            break
    assert world.auditor.violations, what


def test_a_policy_is_not_asked_while_an_evaluation_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = in_rollout(small(**EVALUATED))
    monkeypatch.setattr(Departure, "consider", lambda *_, **__: pytest.fail("it was asked"))
    while world._progress_one():
        pass
