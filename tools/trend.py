"""Whether a quantity grows from swap to swap, or only goes up and down.

The slope is Theil and Sen's (``colocate.core.residual``), which a few outliers do not move. Its
interval is Sen's, from Kendall's S (Sen, "Estimates of the regression coefficient based on
Kendall's tau", 1968), with the variance of S widened for readings that depend on the ones before:
an allocator that took a page keeps it. The widening is Hamed and Rao's ("A modified Mann-Kendall
trend test for autocorrelated data", 1998).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from colocate.core.residual import slope

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """In the unit of the readings, per reading.

    Attributes:
        slope: Per reading.
        low, high: The interval that holds it, with the confidence that was asked for.
    """

    slope: float
    low: float
    high: float

    @property
    def is_told_from_zero(self) -> bool:
        return not self.low <= 0 <= self.high


def trend_of(values: Sequence[float], *, confidence: float = CONFIDENCE) -> Trend:
    """Of at least 4 readings at equal distances.

    Args:
        confidence: That the interval holds the slope. Who judges ``n`` trends at once and wants no
            false one among them asks for ``1 - 0.05 / n`` of each (Bonferroni).

    Raises:
        ValueError: fewer readings.
    """
    count = len(values)
    if count < 4:
        raise ValueError(f"a trend needs at least 4 readings, not {count}")
    first, second = np.triu_indices(count, 1)
    data = np.asarray(values, dtype=float)
    slopes = np.sort((data[second] - data[first]) / (second - first))
    middle = float(slope(deque(values)))  # type: ignore[arg-type]  # integers or not
    _, ties = np.unique(data, return_counts=True)
    variance = (
        count * (count - 1) * (2 * count + 5) - float(np.sum(ties * (ties - 1) * (2 * ties + 5)))
    ) / 18
    reach = _z(confidence) * math.sqrt(variance * _widening(data - middle * np.arange(count)))
    low = math.floor((len(slopes) - reach) / 2) - 1
    high = math.ceil((len(slopes) + reach) / 2)
    return Trend(
        slope=middle,
        low=float(slopes[max(0, low)]),
        high=float(slopes[min(len(slopes) - 1, high)]),
    )


def _widening(residuals: np.ndarray) -> float:
    """How many times more the variance of S is than for independent readings; at least 1.

    ``1 + 2 / (n (n-1) (n-2)) sum_k (n-k) (n-k-1) (n-k-2) r_k`` over the autocorrelations ``r_k`` of
    the ranks that differ from zero at 95%, lags up to a quarter of the readings.
    """
    count = len(residuals)
    ranks = _ranks(residuals)
    ranks = ranks - ranks.mean()
    power = float(ranks @ ranks)
    if power == 0:
        return 1.0
    total = 0.0
    for lag in range(1, max(2, count // 4)):
        correlation = float(ranks[:-lag] @ ranks[lag:]) / power
        if abs(correlation) > _z(CONFIDENCE) / math.sqrt(count):
            total += (count - lag) * (count - lag - 1) * (count - lag - 2) * correlation
    return max(1.0, 1 + 2 * total / (count * (count - 1) * (count - 2)))


def _z(confidence: float) -> float:
    """How many standard deviations to either side hold that share of a normal distribution."""
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def _ranks(values: np.ndarray) -> np.ndarray:
    """From 1; equal values share their mean rank."""
    _, place, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[place]
