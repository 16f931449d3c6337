"""Quantities in words, at the edges of their units."""

from __future__ import annotations

import pytest

from colocate.core.phases import Phase
from colocate.report.words import PHASE_WORDS, count, duration, share, size, size_of


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (duration(0), "0:00"),
        (duration(59.6), "1:00"),
        (duration(3600), "1:00:00"),
        (duration(-1), "0:00"),
        (count(9_999), "9,999"),
        (count(10_000), "10.0k"),
        (count(999_949), "999.9k"),
        (count(999_999), "1.0M"),
        (count(12_345_678_901), "12.3G"),
        (size(0), "0 MiB"),
        (size(2**30 - 1), "1024 MiB"),
        (size(80 * 2**30), "80.0 GiB"),
        (size_of(500 * 2**20, 2**30), "0.5 of 1.0 GiB"),
        (share(0, 0), "0%"),
        (share(1, 1000), "<1%"),
        (share(1, 3), "33%"),
    ],
)
def test_a_quantity_reads_as_a_person_would_write_it(shown: str, expected: str) -> None:
    assert shown == expected


def test_every_phase_has_words() -> None:
    assert PHASE_WORDS.keys() == set(Phase)
