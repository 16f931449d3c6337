"""Which of the readings grow from swap to swap."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from tools.soak_run.readings import Reading
from tools.trend import Trend, trend_of

FALSE_ALARMS = 0.05
"""The chance that a run in which nothing grows is said to grow, over all readings together."""

WARM_UP = 0.2
"""Share of the swaps in which allocators, caches and pools reach their size."""

MIN_READINGS = 20

MIN_SWAPS = round(MIN_READINGS / (1 - WARM_UP))


@dataclass(frozen=True, slots=True)
class Growth:
    """Of one quantity. ``trend`` is per swap.

    Attributes:
        later: The trend of the second half alone: what fills up and then stays shows in the first.
    """

    name: str
    median: float
    trend: Trend
    later: Trend

    @property
    def grows(self) -> bool:
        """Upwards, and still in the second half."""
        return all(each.is_told_from_zero and each.slope > 0 for each in (self.trend, self.later))


def judge(readings: Sequence[Reading]) -> list[Growth]:
    """Of all quantities, from the readings after the warm-up.

    Intervals are those of ``tools.trend``, and hold all together with 95% (Bonferroni).

    Raises:
        ValueError: fewer than ``MIN_READINGS`` are left after the warm-up, or a quantity is missing
            in some of them.
    """
    kept = list(readings)[round(WARM_UP * len(readings)) :]
    if len(kept) < MIN_READINGS:
        raise ValueError(
            f"{len(kept)} readings after the warm-up tell nothing of a trend: at least "
            f"{MIN_READINGS} are needed, so at least {MIN_SWAPS} swaps"
        )
    swaps_each = (kept[-1].swap - kept[0].swap) / (len(kept) - 1)
    names = list(dict.fromkeys(name for each in kept for name in each.held))
    for name in names:
        if lacking := [each.swap for each in kept if name not in each.held]:
            raise ValueError(
                f"{name} is missing after {len(lacking)} swaps, first after swap {lacking[0]}: a "
                "process of the run had ended"
            )
    confidence = 1 - FALSE_ALARMS / len(names)
    return [_growth(name, [r.held[name] for r in kept], swaps_each, confidence) for name in names]


def _growth(name: str, values: Sequence[float], swaps_each: float, confidence: float) -> Growth:
    def trend(part: Sequence[float]) -> Trend:
        found = trend_of(part, confidence=confidence)
        return Trend(
            slope=found.slope / swaps_each,
            low=found.low / swaps_each,
            high=found.high / swaps_each,
        )

    return Growth(name, median(values), trend(values), trend(values[len(values) // 2 :]))


def as_records(found: Sequence[Growth]) -> dict[str, Mapping[str, object]]:
    """For JSON."""
    return {
        each.name: {
            "median": each.median,
            "per_swap": each.trend.slope,
            "interval": [each.trend.low, each.trend.high],
            "later_per_swap": each.later.slope,
            "later_interval": [each.later.low, each.later.high],
            "grows": each.grows,
        }
        for each in found
    }
