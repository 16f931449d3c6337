"""How many batches will be full, against every way in which the groups could end."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.core.batch_outlook import CERTAIN, chances_of_batches

CHANCES = st.lists(st.floats(0, 1), max_size=8)


def by_all_ways(num_complete: int, chances: list[float], groups_per_step: int) -> dict[int, float]:
    """Every subset of the groups ends, with its probability."""
    found: dict[int, float] = {}
    for ends in itertools.product((False, True), repeat=len(chances)):
        probability = math.prod(c if e else 1 - c for c, e in zip(chances, ends, strict=True))
        full = (num_complete + sum(ends)) // groups_per_step
        found[full] = found.get(full, 0.0) + probability
    return found


@given(st.integers(0, 9), CHANCES, st.integers(1, 5))
def test_the_chances_are_those_of_all_ways_in_which_groups_can_end(
    num_complete: int, chances: list[float], groups_per_step: int
) -> None:
    found = chances_of_batches(num_complete, chances, groups_per_step)
    expected = by_all_ways(num_complete, chances, groups_per_step)
    assert sum(found.values()) == pytest.approx(1.0)
    for number in {*found, *expected}:
        # What is nearly certain is taken to be: that is what each such group may be off by.
        assert found.get(number, 0.0) == pytest.approx(
            expected.get(number, 0.0), abs=CERTAIN * len(chances) + 1e-12
        )


@given(CHANCES, st.integers(1, 4))
def test_a_chance_that_stands_for_several_groups_counts_for_all_of_them(
    chances: list[float], stride: int
) -> None:
    found = chances_of_batches(0, chances, 1, stride=stride)
    assert all(number % stride == 0 for number in found)
    mean = sum(number * chance for number, chance in found.items())
    assert mean == pytest.approx(stride * sum(chances), abs=stride * CERTAIN * len(chances) + 1e-9)


def test_the_mean_is_not_rounded_away() -> None:
    """Two of three groups that are as likely as not: a batch of two is as likely as none."""
    assert chances_of_batches(0, [0.5, 0.5, 0.5], 2) == pytest.approx({0: 0.5, 1: 0.5})
