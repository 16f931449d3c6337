"""A bound on restarts that no run could ever reach is refused."""

from __future__ import annotations

from tests.config.trees import problem_of, problems_of

HOLDS = {
    "supervision.max_restarts": 2,
    "supervision.start_timeout_s": 100.0,
    "supervision.phase_timeout_s": 300.0,
    "supervision.training_timeout_s": 200.0,
    "supervision.idle_timeout_s": 250.0,
    "environment.step_timeout_s": 100.0,
    "supervision.restart_window_s": 800.0,
}


def test_a_window_holds_as_many_restarts_as_deadlines_allow() -> None:
    assert problems_of(HOLDS) == []
    problem = problem_of({**HOLDS, "supervision.restart_window_s": 799.0})
    assert problem.field == "supervision.restart_window_s"
    assert "800 s" in problem.rule
    assert problem.remedy.startswith("set supervision.restart_window_s=800,")


def test_an_engine_that_hangs_in_the_rollout_is_noticed_no_sooner_than_its_deadline() -> None:
    problem = problem_of({**HOLDS, "supervision.idle_timeout_s": 400.0})
    assert problem.remedy.startswith("set supervision.restart_window_s=1000,")


def test_without_restarts_there_is_nothing_to_count() -> None:
    assert problems_of({**HOLDS, "supervision.max_restarts": 0}) == []
    narrow = {"supervision.max_restarts": 0, "supervision.restart_window_s": 1.0}
    assert problems_of({**HOLDS, **narrow}) == []
