"""The one definition of staleness, against tables and brute force."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.core import staleness
from colocate.core.settings import Settings
from colocate.core.types import Span, Version, merge_spans


@pytest.mark.parametrize(
    ("bound", "trained_at", "sampled_at", "allowed"),
    [
        (0, 5, 5, True),
        (0, 5, 4, False),
        (1, 5, 4, True),
        (1, 5, 3, False),
        (2, 4, 2, True),
        (2, 4, 1, False),
    ],
)
def test_the_bound_is_inclusive(
    bound: int, trained_at: int, sampled_at: int, allowed: bool
) -> None:
    within = staleness.is_within_bound(Version(trained_at), Version(sampled_at), bound)
    assert within is allowed


def test_a_trajectory_is_as_old_as_its_oldest_token_not_its_last() -> None:
    spans = (Span(version=Version(1), length=2), Span(version=Version(4), length=1))
    oldest = staleness.oldest(spans)
    assert oldest == 1
    assert not staleness.is_within_bound(Version(4), oldest, 2)


def test_a_token_from_the_future_is_refused() -> None:
    with pytest.raises(ValueError, match="version 6"):
        staleness.lag(Version(5), Version(6))


@pytest.mark.parametrize(("bound", "resident", "requests"), [(0, 3, 12), (1, 6, 12), (3, 12, 36)])
def test_admission_follows_the_formulas_and_is_never_zero(
    bound: int, resident: int, requests: int
) -> None:
    assert staleness.max_resident(bound, 3) == resident
    assert staleness.max_requests(bound, 12) == requests


def test_a_swap_interval_above_the_bound_plus_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_staleness"):
        Settings(steps=1, group_size=1, groups_per_step=1, max_staleness=1, swap_interval=3)


def most_batches_by_brute_force(ages: list[int], version: int, bound: int, size: int) -> int:
    best = 0
    for order in permutations(ages):
        filled = 0
        for j in range(len(order) // size):
            batch = order[j * size : (j + 1) * size]
            if all(version + j - age <= bound for age in batch):
                filled = j + 1
            else:
                break
        best = max(best, filled)
    return best


@given(
    st.lists(st.integers(2, 6), max_size=6),
    st.integers(0, 3),
    st.integers(1, 2),
    st.integers(1, 4),
)
def test_oldest_first_fills_as_many_batches_as_any_order_could(
    ages: list[int], bound: int, size: int, max_batches: int
) -> None:
    version = 6
    batches = staleness.assign_batches(
        [Version(a) for a in ages],
        version=Version(version),
        max_staleness=bound,
        groups_per_batch=size,
        max_batches=max_batches,
    )
    taken = [position for batch in batches for position in batch]
    assert len(taken) == len(set(taken))
    for j, batch in enumerate(batches):
        assert len(batch) == size
        assert all(version + j - ages[i] <= bound for i in batch)
    possible = most_batches_by_brute_force(ages, version, bound, size)
    assert len(batches) == min(possible, max_batches)


def test_equally_old_groups_are_taken_in_the_order_in_which_they_completed() -> None:
    batches = staleness.assign_batches(
        [Version(3)] * 4, version=Version(3), max_staleness=1, groups_per_batch=2, max_batches=1
    )
    assert batches == [[0, 1]]


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 4))))
def test_merged_spans_cover_the_same_tokens(pairs: list[tuple[int, int]]) -> None:
    spans = [Span(version=Version(v), length=n) for v, n in pairs]
    merged = merge_spans(spans)
    assert [v for v, n in pairs for _ in range(n)] == [
        s.version for s in merged for _ in range(s.length)
    ]
    assert all(a.version != b.version for a, b in pairwise(merged))
