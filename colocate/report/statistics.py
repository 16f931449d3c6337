"""Means over repetitions, with how sure of them one can be."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.stats import t as student

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over ``n`` repetitions.

    ``half_width`` is that of the two-sided interval: the mean lies in ``mean +- half_width`` with
    the confidence asked for, where repetitions are independent and about normally distributed.
    None for a single one, which says nothing about its own spread.
    """

    mean: float
    half_width: float | None
    n: int

    def __str__(self) -> str:
        return self.text()

    def text(self, digits: int = 3) -> str:
        """As in a table: ``0.512 ± 0.031 (n=3)``."""
        spread = "" if self.half_width is None else f" ± {self.half_width:.{digits}f}"
        return f"{self.mean:.{digits}f}{spread} (n={self.n})"


def estimate(values: Sequence[float], confidence: float = CONFIDENCE) -> Estimate:
    """Mean and Student's t interval: ``mean +- t(n - 1) s / sqrt(n)``, s with n - 1.

    Source: Student (1908), "The probable error of a mean".

    Raises:
        ValueError: no values, or a confidence outside of (0, 1).
    """
    n = len(values)
    if n == 0:
        raise ValueError("an estimate needs at least one value")
    if not 0 < confidence < 1:
        raise ValueError(f"the confidence must lie between 0 and 1; it is {confidence}")
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean=mean, half_width=None, n=1)
    variance = math.fsum((value - mean) ** 2 for value in values) / (n - 1)
    quantile = float(student.ppf((1 + confidence) / 2, n - 1))
    return Estimate(mean=mean, half_width=quantile * math.sqrt(variance / n), n=n)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other beats: cost (first) low, value (second) high.

    A point is beaten by one that is no worse in both and better in one. In rising order of cost.
    """

    def beats(one: tuple[float, float], other: tuple[float, float]) -> bool:
        return one[0] <= other[0] and one[1] >= other[1] and one != other

    front = [i for i, point in enumerate(points) if not any(beats(p, point) for p in points)]
    return sorted(front, key=lambda index: points[index])
