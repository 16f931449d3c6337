"""A leak is told from an allocator's ups and downs, in as many swaps as a bench makes."""

from __future__ import annotations

import numpy as np
import pytest

from tools.trend import trend_of

SWAPS = 80
TRIALS = 200


def share_told(make) -> float:
    draw = np.random.default_rng(0)
    return float(np.mean([trend_of(make(draw)).is_told_from_zero for _ in range(TRIALS)]))


def test_readings_that_never_change_have_no_trend():
    trend = trend_of([7] * SWAPS)
    assert (trend.slope, trend.low, trend.high) == (0, 0, 0)
    assert not trend.is_told_from_zero


def test_a_steady_growth_is_found_with_its_size():
    trend = trend_of([1000 + 3 * swap for swap in range(SWAPS)])
    assert trend.slope == trend.low == trend.high == 3
    assert trend.is_told_from_zero


def test_of_pure_noise_about_one_in_twenty_is_taken_for_a_trend():
    assert share_told(lambda draw: draw.normal(size=SWAPS)) < 0.1


def test_a_growth_far_below_the_noise_of_one_reading_is_found():
    growth = 0.05 * np.arange(SWAPS)
    assert share_told(lambda draw: draw.normal(size=SWAPS) + growth) > 0.95


def test_the_interval_holds_the_true_growth():
    draw = np.random.default_rng(1)
    trends = [trend_of(draw.normal(size=SWAPS) + 0.1 * np.arange(SWAPS)) for _ in range(TRIALS)]
    assert np.mean([trend.low <= 0.1 <= trend.high for trend in trends]) > 0.9


def test_readings_that_depend_on_the_last_one_make_the_interval_wider():
    draw = np.random.default_rng(2)

    def width(values) -> float:
        trend = trend_of(values)
        return trend.high - trend.low

    steps = draw.normal(size=SWAPS)
    slow = np.zeros(SWAPS)
    for swap in range(1, SWAPS):
        slow[swap] = 0.9 * slow[swap - 1] + steps[swap]
    shuffled = draw.permutation(slow)
    assert width(slow) > 1.5 * width(shuffled)


def test_one_jump_is_no_growth():
    assert not trend_of([100] * 60 + [130] * 20).is_told_from_zero


def test_three_readings_are_too_few():
    with pytest.raises(ValueError, match="at least 4 readings"):
        trend_of([1, 2, 3])
