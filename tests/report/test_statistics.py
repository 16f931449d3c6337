"""Intervals and fronts, against figures written out by hand."""

from __future__ import annotations

import pytest

from colocate.report.statistics import Estimate, estimate, pareto_front


def test_an_interval_is_students_t() -> None:
    # s = 1, t(0.975; 2) = 4.302652729749462, half-width = t / sqrt(3)
    found = estimate([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.half_width == pytest.approx(2.484137711, abs=1e-8)
    assert found.n == 3


def test_two_values_and_another_confidence() -> None:
    # s = sqrt(2), t(0.95; 1) = 6.313751514675043, half-width = t * sqrt(2) / sqrt(2)
    found = estimate([4.0, 6.0], confidence=0.9)
    assert (found.mean, found.n) == (5.0, 2)
    assert found.half_width == pytest.approx(6.313751515, abs=1e-8)


def test_equal_values_have_an_interval_of_nothing_and_a_single_one_has_none() -> None:
    assert estimate([0.5, 0.5]).half_width == 0.0
    assert estimate([0.5]) == Estimate(mean=0.5, half_width=None, n=1)
    assert str(estimate([0.5])) == "0.500 (n=1)"
    assert estimate([1.0, 2.0, 3.0]).text(1) == "2.0 ± 2.5 (n=3)"


def test_no_value_and_no_confidence_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one"):
        estimate([])
    with pytest.raises(ValueError, match="between 0 and 1"):
        estimate([1.0], confidence=1.0)


def test_the_front_holds_what_no_other_point_beats() -> None:
    points = [(0.0, 5.0), (1.0, 9.0), (1.0, 8.0), (2.0, 9.0), (0.5, 5.0), (3.0, 12.0)]
    assert pareto_front(points) == [0, 1, 5]
    assert pareto_front([(1.0, 1.0), (1.0, 1.0)]) == [0, 1]
    assert pareto_front([]) == []
