"""What grows from swap to swap is told from what only moves about."""

from __future__ import annotations

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from colocate.core.residual import WINDOW, ResidualWatch, agreement, slope

MIB = 2**20


def warnings(values: list[int], room: int = 100 * MIB) -> list[str]:
    watch = ResidualWatch()
    said = [watch.observe("the engine asleep", value, room) for value in values]
    return [text for text in said if text]


@given(st.integers(-(10**9), 10**9), st.integers(-1000, 1000))
def test_the_slope_of_a_line_is_its_own(start: int, step: int) -> None:
    assert slope(deque(start + step * i for i in range(WINDOW))) == step


@given(
    st.lists(st.integers(0, 10**6), min_size=WINDOW, max_size=WINDOW), st.integers(0, WINDOW - 1)
)
def test_one_outlier_does_not_make_a_trend_of_a_flat_line(values: list[int], where: int) -> None:
    flat = [500 * MIB] * WINDOW
    flat[where] += values[where] * MIB
    assert slope(deque(flat)) == 0
    assert warnings(flat) == []


def test_a_steady_growth_is_named_once_with_the_swaps_that_are_left() -> None:
    [warning] = warnings([MIB * i for i in range(4 * WINDOW)])
    assert warning.startswith("the engine asleep holds 1.0 MiB more after each swap")
    assert warning.endswith("it no longer fits in about 100 swaps")


def test_growth_that_leaves_room_for_long_is_not_worth_a_word() -> None:
    assert warnings([MIB * i for i in range(4 * WINDOW)], room=10**6 * MIB) == []


def test_a_page_more_each_swap_is_no_growth_even_where_there_is_no_room() -> None:
    assert warnings([4096 * i for i in range(4 * WINDOW)], room=0) == []


def test_what_shrinks_and_what_wavers_is_no_growth() -> None:
    assert warnings([MIB * (100 - i) for i in range(2 * WINDOW)]) == []
    assert warnings([MIB * (i % 2) for i in range(2 * WINDOW)]) == []


@given(st.lists(st.integers(0, 100), min_size=2, max_size=WINDOW))
def test_the_agreement_lies_between_minus_one_and_one_and_turns_with_the_order(
    values: list[int],
) -> None:
    forward, backward = agreement(deque(values)), agreement(deque(reversed(values)))
    assert -1 <= forward <= 1
    assert forward == -backward
