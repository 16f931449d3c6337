"""Robust estimates: a value with how far off it may be, and a line through points with outliers."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

MAD_TO_DEVIATION = 1.4826
"""Median absolute deviation to standard deviation, for normal errors."""

MEDIAN_INEFFICIENCY = 1.2533
"""Standard error of a median over that of a mean, for normal errors: sqrt(pi / 2)."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """``error`` is one standard error of ``value``, in its unit; infinite where nothing is known.

    Example: ``Estimate(0.21, 0.02)`` seconds.
    """

    value: float
    error: float

    def __add__(self, other: Estimate) -> Estimate:
        """The sum of independent estimates."""
        return Estimate(self.value + other.value, math.hypot(self.error, other.error))

    def times(self, factor: float) -> Estimate:
        return Estimate(self.value * factor, self.error * abs(factor))


UNKNOWN = Estimate(0.0, math.inf)


def median(values: Iterable[float]) -> float:
    """Of at least one value."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    if len(ordered) % 2:
        return ordered[middle]
    return (ordered[middle - 1] + ordered[middle]) / 2


def deviation(residuals: Sequence[float]) -> float:
    """A standard deviation that outliers do not move: scaled median absolute deviation."""
    centre = median(residuals)
    return MAD_TO_DEVIATION * median([abs(r - centre) for r in residuals])


class RobustLine:
    """``y = intercept + slope * x`` with neither below 0, through the latest ``window`` points.

    Theil-Sen: the slope is the median of the slopes of all pairs of points, the intercept the
    median of what is left; up to 29% of the points may be anything (Sen 1968). Where all x are
    alike the slope cannot be seen, and the line is the median of y.
    """

    def __init__(self, window: int = 24) -> None:
        self._points: deque[tuple[float, float]] = deque(maxlen=window)
        self._fit: tuple[float, float, float] | None = None

    def __len__(self) -> int:
        return len(self._points)

    def observe(self, x: float, y: float) -> None:
        self._points.append((x, y))
        self._fit = None

    def predict(self, x: float) -> Estimate:
        """The line's y at x."""
        num = len(self._points)
        if not num:
            return UNKNOWN
        if num == 1:
            (only,) = self._points
            return Estimate(only[1], only[1])
        intercept, slope, spread = self._fitted()
        mean = sum(p[0] for p in self._points) / num
        squares = sum((p[0] - mean) ** 2 for p in self._points)
        lever = (x - mean) ** 2 / squares if squares > 0 else 0.0
        error = MEDIAN_INEFFICIENCY * spread * math.sqrt(1 / num + lever)
        return Estimate(max(0.0, intercept + slope * x), error)

    def slope(self) -> float:
        """Of y over x; 0 where it cannot be seen."""
        return self._fitted()[1] if len(self._points) > 1 else 0.0

    def snapshot(self) -> list[list[float]]:
        return [list(point) for point in self._points]

    def restore(self, points: Iterable[Sequence[float]]) -> None:
        for x, y in points:
            self.observe(float(x), float(y))

    def _fitted(self) -> tuple[float, float, float]:
        """Intercept, slope, standard deviation of the residuals."""
        if self._fit is None:
            points = list(self._points)
            span = max(abs(p[0]) for p in points)
            slopes = [
                (b[1] - a[1]) / (b[0] - a[0])
                for i, a in enumerate(points)
                for b in points[:i]
                if abs(b[0] - a[0]) > 1e-3 * span
            ]
            slope = max(0.0, median(slopes)) if slopes else 0.0
            intercept = median([y - slope * x for x, y in points])
            if intercept < 0:
                intercept = 0.0
                slope = max(0.0, median([y / x for x, y in points if x > 0]))
            spread = deviation([y - intercept - slope * x for x, y in points])
            self._fit = intercept, slope, spread
        return self._fit
