"""What ends is counted, however many reasons there are."""

from __future__ import annotations

import pytest

from colocate.core.books import MAX_REASONS, MAX_WINDOWS, OTHER_REASONS, Books
from colocate.core.phases import Phase
from colocate.core.types import Ending


def test_more_reasons_than_can_be_told_apart_are_still_counted() -> None:
    books = Books(bound=1)
    for number in range(MAX_REASONS + 20):
        books.end(Ending.FILTERED, f"request {number} was refused", 3)
    books.end(Ending.FILTERED, "request 0 was refused", 3)
    assert len(books.reasons) == MAX_REASONS + 1
    assert books.reasons["filtered: request 0 was refused"] == 2
    assert books.reasons[f"filtered: {OTHER_REASONS}"] == 20
    assert sum(books.reasons.values()) == books.endings[Ending.FILTERED] == MAX_REASONS + 21
    assert books.tokens["discarded"] == 3 * (MAX_REASONS + 21)


def swap(books: Books, began_s: float, ended_s: float) -> None:
    books.enter_phase(Phase.ROLLOUT, Phase.PARKING, began_s, began_s)
    books.enter_phase(Phase.KV_WAKING, Phase.ROLLOUT, began_s, ended_s)


def test_of_a_call_over_more_swaps_than_are_known_what_the_last_ones_hid_counts() -> None:
    books = Books(bound=1)
    for number in range(2 * MAX_WINDOWS):
        swap(books, number, number + 0.25)
    books.environment(0.5, 2 * MAX_WINDOWS - 0.5, is_step=True)
    assert books.hidden_s == pytest.approx(0.25)
    books.environment(2 * MAX_WINDOWS, 2 * MAX_WINDOWS, is_step=True)
    assert books.hidden_s == pytest.approx(0.25 + 0.25 * MAX_WINDOWS)
