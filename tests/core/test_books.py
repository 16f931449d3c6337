"""What ends is counted, however many reasons there are."""

from __future__ import annotations

from colocate.core.books import MAX_REASONS, OTHER_REASONS, Books
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
