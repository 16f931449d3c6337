"""Position to row is a pure function of seed and position."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.data.order import EpochOrder, hold_out

COUNTS = st.integers(1, 200)
SEEDS = st.integers(0, 2**63)


@given(COUNTS, SEEDS, st.integers(0, 5))
def test_each_epoch_has_every_row_once(num_rows: int, seed: int, epoch: int) -> None:
    order = EpochOrder(num_rows, seed=seed, shuffle=True)

    rows = [order.row(epoch * num_rows + index) for index in range(num_rows)]

    assert sorted(rows) == list(range(num_rows))


@given(COUNTS, SEEDS, st.lists(st.integers(0, 2000), max_size=20))
def test_any_position_can_be_asked_for_in_any_order(
    num_rows: int, seed: int, positions: list[int]
) -> None:
    asked = EpochOrder(num_rows, seed=seed, shuffle=True)
    fresh = [EpochOrder(num_rows, seed=seed, shuffle=True).row(p) for p in positions]

    assert [asked.row(p) for p in positions] == fresh


def test_epochs_and_seeds_differ_in_order() -> None:
    first = EpochOrder(100, seed=0, shuffle=True)
    other = EpochOrder(100, seed=1, shuffle=True)

    orders = [
        [first.row(p) for p in range(100)],
        [first.row(p) for p in range(100, 200)],
        [other.row(p) for p in range(100)],
    ]

    assert all(a != b for a in orders for b in orders if a is not b)


def test_without_shuffling_rows_come_as_they_lie() -> None:
    order = EpochOrder(3, seed=0, shuffle=False)

    assert [order.row(p) for p in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_the_order_is_the_same_in_all_versions() -> None:
    """A resumed run must go on in the order in which it began."""
    order = EpochOrder(8, seed=3, shuffle=True)

    assert [order.row(p) for p in range(16)] == GOLDEN


GOLDEN = [1, 0, 2, 7, 5, 3, 6, 4, 3, 0, 4, 6, 2, 7, 1, 5]


@given(COUNTS, st.floats(0, 1, exclude_max=True))
def test_what_is_held_out_is_never_trained_on(num_rows: int, fraction: float) -> None:
    train, held_out = hold_out(num_rows, fraction)

    assert sorted([*train, *held_out]) == list(range(num_rows))
    assert len(held_out) == round(num_rows * fraction)
    assert list(train) == sorted(train)


def test_no_rows_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one row"):
        EpochOrder(0, seed=0, shuffle=True)
