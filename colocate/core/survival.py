"""How long things last: a survival curve in logarithmic bins, from ends and from what was cut off.

The estimator is Kaplan and Meier's (1958), on bins of equal ratio: bounded in memory whatever is
fed to it, and right also where the longest are still going on. One value in twenty that is
nonsense moves it by one in twenty.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

BINS_PER_OCTAVE = 4
_LN2 = math.log(2.0)
NUM_TO_HALVE = 8192
"""Ends after which all counts are halved, so that what has changed is learned anew."""


class Survival:
    """P(lasts longer than x) for x from ``smallest`` on, in the unit of ``smallest``."""

    def __init__(self, smallest: float, num_octaves: int = 30) -> None:
        self._smallest = smallest
        size = num_octaves * BINS_PER_OCTAVE
        self._ended = [0.0] * size
        self._cut = [0.0] * size
        self._num_ended = 0.0
        self._curve: list[float] | None = None
        # Upper edge of each bin.
        self._edges = [smallest * math.exp2(i / BINS_PER_OCTAVE) for i in range(size)]
        self._quantiles: dict[float, float] = {}

    @property
    def num_ended(self) -> float:
        return self._num_ended

    def end(self, lasted: float) -> None:
        """Something ended after this long."""
        self._ended[self._bin(lasted)] += 1
        self._num_ended += 1
        self._curve = None
        if self._num_ended >= NUM_TO_HALVE:
            self._ended = [n / 2 for n in self._ended]
            self._cut = [n / 2 for n in self._cut]
            self._num_ended /= 2

    def cut_off(self, lasted: float) -> None:
        """Something had not ended after this long, and will not be seen to end."""
        self._cut[self._bin(lasted)] += 1
        self._curve = None

    def beyond(self, x: float) -> float:
        """P(lasts longer than x); past all that was seen it falls like 1 / x."""
        if x <= 0:
            return 1.0
        curve = self._curve or self._make_curve()
        position = math.log(x / self._smallest) / _LN2 * BINS_PER_OCTAVE
        if position <= 0:
            return 1.0 - (1.0 - curve[0]) * x / self._smallest
        index = int(position)
        if index + 1 >= len(curve):
            return curve[-1] * self._edges[len(curve) - 1] / x
        here, there = curve[index], curve[index + 1]
        return here + (there - here) * (position - index)

    def still(self, age: float, ahead: float) -> float:
        """P(lasts ``ahead`` longer | has lasted ``age``)."""
        at_age = self.beyond(age)
        return self.beyond(age + ahead) / at_age if at_age > 0 else 0.0

    def quantile(self, q: float) -> float:
        """The x that a share ``q`` does not outlast."""
        curve = self._curve or self._make_curve()
        known = self._quantiles.get(q)
        if known is None:
            known = self._quantiles[q] = self._find_quantile(curve, q)
        return known

    def _find_quantile(self, curve: Sequence[float], q: float) -> float:
        before, left = 1.0, 0.0
        for right, share in zip(self._edges, curve, strict=False):
            if share <= 1 - q:
                return left + (right - left) * (before - (1 - q)) / max(1e-12, before - share)
            before, left = share, right
        return left * before / max(1e-9, 1 - q)

    def mean(self, limit: float = math.inf) -> float:
        """Of what was seen to end or be cut off, up to ``limit``: the area under the curve."""
        curve = self._curve or self._make_curve()
        area, left, share = 0.0, 0.0, 1.0
        for edge, there in zip(self._edges, curve, strict=False):
            right = min(limit, edge)
            area += (right - left) * (share + there) / 2
            left, share = right, there
            if right >= limit or share <= 0:
                break
        return area

    def share_error(self, x: float) -> float:
        """One standard error of ``beyond(x)``, as of a share of that many ends."""
        share = self.beyond(x)
        return math.sqrt(max(share * (1 - share), 1e-4) / max(1.0, self._num_ended))

    def snapshot(self) -> dict[str, Any]:
        return {
            "ended": {str(i): n for i, n in enumerate(self._ended) if n},
            "cut": {str(i): n for i, n in enumerate(self._cut) if n},
        }

    def restore(self, data: Mapping[str, Mapping[str, float]]) -> None:
        for counts, known in ((self._ended, data["ended"]), (self._cut, data["cut"])):
            for index, number in known.items():
                counts[int(index)] = float(number)
        self._num_ended = sum(self._ended)
        self._curve = None

    def _bin(self, lasted: float) -> int:
        if lasted <= self._smallest:
            return 0
        index = 1 + int(math.log(lasted / self._smallest) / _LN2 * BINS_PER_OCTAVE)
        return min(index, len(self._ended) - 1)

    def _make_curve(self) -> list[float]:
        """``curve[i]`` = P(lasts longer than bin i's upper edge), up to the last bin with an end.

        Half an observation is added to those at risk, so that the curve ends above 0: nobody knows
        that nothing will ever last longer.
        """
        last = max((i for i, n in enumerate(self._ended) if n), default=0)
        at_risk = sum(self._ended) + sum(self._cut) + 0.5
        share, curve = 1.0, []
        for ended, cut in zip(self._ended[: last + 1], self._cut, strict=False):
            if at_risk > 0:
                share *= 1 - ended / at_risk
            curve.append(share)
            at_risk -= ended + cut
        self._curve = curve
        self._quantiles.clear()
        return curve


def pool(ages: Sequence[float], width: float = 1.25) -> list[tuple[float, int]]:
    """Ages that differ by less than the ratio ``width`` counted together: (mean age, count)."""
    pooled: list[tuple[float, int]] = []
    limit, total, count = -1.0, 0.0, 0
    for age in sorted(ages):
        if count and age > limit:
            pooled.append((total / count, count))
            total, count = 0.0, 0
        if not count:
            limit = max(age * width, 1e-3)
        total += age
        count += 1
    if count:
        pooled.append((total / count, count))
    return pooled
