"""Watches what should be the same after every swap, and says in time where it grows."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median

WINDOW = 16
"""Swaps that a slope is taken over."""

MIN_AGREEMENT = 0.75
"""Kendall's tau: the excess of rising over falling pairs that makes a growth a trend."""

MIN_GROWTH_BYTES = 2**20
"""Over the window: less is what any allocator moves about."""

HORIZON_SWAPS = 200
"""Growth that leaves room for more swaps than this is not worth a word."""


@dataclass(slots=True)
class ResidualWatch:
    """Feed it the same quantity after each swap; it answers with a warning, once for each name."""

    _values: dict[str, deque[int]] = field(default_factory=dict)
    _warned: set[str] = field(default_factory=set)

    def observe(self, name: str, num_bytes: int, room: int) -> str | None:
        """Takes in one reading.

        Args:
            name: What it is of, for the warning.
            room: Bytes by which it may grow before something no longer fits.
        """
        values = self._values.setdefault(name, deque(maxlen=WINDOW))
        values.append(num_bytes)
        if len(values) < WINDOW or name in self._warned:
            return None
        per_swap = slope(values)
        grows = per_swap * WINDOW >= MIN_GROWTH_BYTES and agreement(values) >= MIN_AGREEMENT
        if not grows or room >= per_swap * HORIZON_SWAPS:
            return None
        self._warned.add(name)
        return (
            f"{name} holds {per_swap / 2**20:.1f} MiB more after each swap, as seen over "
            f"{WINDOW} of them: at this pace it no longer fits in about "
            f"{max(1, round(max(0, room) / per_swap))} swaps"
        )


def slope(values: deque[int]) -> float:
    """The median of the slopes of all pairs, in bytes a swap (Theil 1950, Sen 1968)."""
    pairs = combinations(enumerate(values), 2)
    return median((b - a) / (j - i) for (i, a), (j, b) in pairs)


def agreement(values: deque[int]) -> float:
    """Kendall's tau of the values against their order, ties counting for neither."""
    signs = [(b > a) - (b < a) for a, b in combinations(values, 2)]
    return sum(signs) / len(signs)
