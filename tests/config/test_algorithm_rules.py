"""Which parts of an algorithm go together."""

from __future__ import annotations

from typing import Any

import pytest

from colocate.cli.compose import plan_jobs
from colocate.cli.train import parse
from colocate.preflight import find_problems
from tests.config.trees import fields_of, problem_of


def of_algorithm(values: dict[str, Any]) -> dict[str, Any]:
    """Values of fields of `algorithm`; of its correction and penalty by their path."""
    tree: dict[str, Any] = {"algorithm.correction": {}, "algorithm.kl": {}}
    return tree | {f"algorithm.{path}": value for path, value in values.items()}


@pytest.mark.parametrize("advantage", ["group_std", "group_mean", "batch_std", "leave_one_out"])
def test_estimators_that_compare_within_a_group_need_two_in_it(advantage: str) -> None:
    problem = problem_of(of_algorithm({"group_size": 1, "advantage": advantage}))
    assert problem.field == "algorithm.group_size"
    assert f"algorithm.advantage={advantage} compares the members of a group" in problem.rule
    assert "algorithm.advantage=batch_norm" in problem.remedy
    assert fields_of(of_algorithm({"group_size": 2, "advantage": advantage})) == set()


def test_groups_of_one_are_compared_with_the_batch_if_that_has_two() -> None:
    lone = {"group_size": 1, "advantage": "batch_norm"}
    assert fields_of(of_algorithm({**lone, "groups_per_step": 2})) == set()
    problem = problem_of(of_algorithm({**lone, "groups_per_step": 1}))
    assert problem.field == "algorithm.groups_per_step"


def test_a_sum_by_a_fixed_length_needs_that_length() -> None:
    problem = problem_of(of_algorithm({"aggregation": "fixed_length"}))
    assert problem.field == "algorithm.length_budget"
    assert "required by algorithm.aggregation=fixed_length" in problem.rule
    given = {"aggregation": "fixed_length", "length_budget": 10}
    assert fields_of(of_algorithm(given)) == set()


@pytest.mark.parametrize("surrogate", ["cispo", "reinforce"])
def test_the_dual_clip_is_refused_where_it_would_bound_nothing(surrogate: str) -> None:
    problem = problem_of(of_algorithm({"surrogate": surrogate, "dual_clip": 3.0}))
    assert problem.field == "algorithm.dual_clip"
    assert fields_of(of_algorithm({"surrogate": "clip", "dual_clip": 3.0})) == set()


def test_reinforce_has_no_ratio_to_take_of_sequences() -> None:
    problem = problem_of(of_algorithm({"surrogate": "reinforce", "ratio": "sequence"}))
    assert problem.field == "algorithm.ratio"
    assert "correction.level=sequence" in problem.remedy
    assert fields_of(of_algorithm({"surrogate": "cispo", "ratio": "sequence"})) == set()


@pytest.mark.parametrize("mode", ["truncate", "none"])
def test_a_floor_is_refused_where_nothing_is_rejected_by_its_weight(mode: str) -> None:
    problem = problem_of(of_algorithm({"correction": {"mode": mode, "floor": 0.5}}))
    assert problem.field == "algorithm.correction.floor"
    assert fields_of(of_algorithm({"correction": {"mode": "mask", "floor": 0.5}})) == set()


@pytest.mark.parametrize("surrogate", ["clip", "cispo"])
def test_a_weight_that_the_ratio_carries_is_not_counted_once_more(surrogate: str) -> None:
    plain = {"surrogate": surrogate, "correction": {"objective": "plain"}}
    problem = problem_of(of_algorithm(plain))
    assert problem.field == "algorithm.correction.mode"
    assert "is the weight already" in problem.rule
    for mode in ("none", "mask"):
        allowed = {**plain, "correction": {"objective": "plain", "mode": mode}}
        assert fields_of(of_algorithm(allowed)) == set()


def test_reinforce_may_have_truncated_weights_of_the_current_policy() -> None:
    values = {"surrogate": "reinforce", "correction": {"objective": "plain", "mode": "truncate"}}
    assert fields_of(of_algorithm(values)) == set()


@pytest.mark.parametrize(
    ("name", "value"),
    [("cap", 1.0), ("band_high", 1.0), ("floor", 1.0), ("band_low", 1.0), ("veto", 0.0)],
)
def test_limits_must_leave_room_for_the_ratio_of_on_policy_data(name: str, value: float) -> None:
    values = of_algorithm({"correction": {"mode": "mask", name: value}})
    assert fields_of(values) == {f"algorithm.correction.{name}"}


@pytest.mark.parametrize(
    ("name", "value"), [("coef", -0.1), ("estimator", "k4"), ("placement", "both")]
)
def test_a_penalty_is_of_the_kinds_that_there_are(name: str, value: Any) -> None:
    assert fields_of(of_algorithm({"kl": {name: value}})) == {f"algorithm.kl.{name}"}


def test_a_budget_of_values_that_are_still_missing_hides_no_other_problem() -> None:
    plan = plan_jobs(parse(["algorithm=dr_grpo"]))
    assert plan.problems == ()
    assert plan.jobs[0].tree["algorithm"]["length_budget"] is None
    _, problems = find_problems(plan.jobs[0].tree)
    assert {"rollout.max_new_tokens", "steps"} <= {problem.field for problem in problems}
    assert "algorithm.length_budget" not in {problem.field for problem in problems}


# Lengths


def test_a_shape_needs_the_length_at_which_its_penalty_is_whole() -> None:
    problem = problem_of({"algorithm.overlong": {"mode": "shape"}})
    assert problem.field == "algorithm.overlong.max_length"
    assert "rollout.max_new_tokens,rollout.max_turns" in problem.remedy


def test_a_penalty_cannot_begin_before_the_first_token_nor_beyond_the_last() -> None:
    before = {"mode": "shape", "max_length": 3, "cache_length": 4}
    assert problem_of({"algorithm.overlong": before}).field == "algorithm.overlong.cache_length"
    beyond = {"mode": "shape", "max_length": 100, "cache_length": 20}
    problem = problem_of({"algorithm.overlong": beyond})
    assert (problem.field, problem.remedy) == (
        "algorithm.overlong.max_length",
        "set algorithm.overlong.max_length=3",
    )
    assert not fields_of({"algorithm.overlong": {**beyond, "mode": "mask"}})
