"""What can be done with groups of equal rewards, and what it goes together with."""

from __future__ import annotations

import pytest

from colocate.assembly import core_settings
from colocate.preflight import validate
from tests.config.trees import fields_of, problem_of, with_values
from tests.learn.shipped import SHIPPED, shipped

REPLAY = {"buffer.replay_groups": 4}
RESAMPLE = {"algorithm.dynamic_sampling": True}


def test_each_alone_is_allowed_and_reaches_the_core() -> None:
    settings = core_settings(validate(with_values({**REPLAY, "buffer.replay_max_uses": 3})))
    assert (settings.replay_groups, settings.replay_max_uses) == (4, 3)
    assert settings.replay_max_staleness == 4
    limit = {"algorithm.dynamic_sampling_max_groups": 5}
    settings = core_settings(validate(with_values({**RESAMPLE, **limit})))
    assert settings.dynamic_sampling
    assert settings.max_flat_groups == 5


def test_both_at_once_are_refused() -> None:
    problem = problem_of({**REPLAY, **RESAMPLE})
    assert problem.field == "buffer.replay_groups"
    assert "algorithm.dynamic_sampling=true" in problem.rule


def test_replay_without_correction_is_refused() -> None:
    problem = problem_of({**REPLAY, "algorithm.correction": {"mode": "none"}})
    assert problem.field == "buffer.replay_groups"
    assert "older policies" in problem.rule
    assert "algorithm.correction.mode=truncate" in problem.remedy
    assert fields_of({**REPLAY, "algorithm.correction": {"mode": "mask"}}) == set()
    assert fields_of({"algorithm.correction": {"mode": "none"}}) == set()


@pytest.mark.parametrize(
    ("values", "field"),
    [(REPLAY, "buffer.replay_groups"), (RESAMPLE, "algorithm.dynamic_sampling")],
)
def test_a_flat_group_does_not_give_way_where_it_is_compared_with_the_batch(
    values: dict[str, object], field: str
) -> None:
    problem = problem_of({**values, "algorithm.advantage": "batch_norm"})
    assert problem.field == field
    assert "whole batch" in problem.rule
    assert fields_of({**values, "algorithm.advantage": "batch_std"}) == set()


@pytest.mark.parametrize(
    "values",
    [
        {"buffer.replay_groups": -1},
        {"buffer.replay_max_staleness": 0},
        {"buffer.replay_max_uses": 0},
        {"buffer.replay_min_std": -0.1},
        {"algorithm.dynamic_sampling_max_groups": 0},
    ],
)
def test_values_out_of_range_are_refused(values: dict[str, object]) -> None:
    assert fields_of(values) == set(values)


@pytest.mark.parametrize("name", SHIPPED)
def test_of_the_shipped_algorithms_dapo_alone_samples_dynamically(name: str) -> None:
    assert shipped(name).dynamic_sampling is (name == "dapo")
