"""One family of workloads, every policy: throughput as a share of the best fixed interval's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from colocate.core.staleness import max_swap_interval
from colocate.sim.cluster import Cluster
from tools.policy_bench.families import Family

INTERVALS = (1, 2, 3, 4, 6, 8)
"""As many of them as the bound allows are tried."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """Of one run. ``per_s``: trained trajectories a second, over the whole run."""

    per_s: float
    swaps: int
    expired: int
    seconds: float


def simulate(
    family: Family, policy: Literal["interval", "drain", "adaptive"], interval: int, seed: int
) -> Result:
    """Raises:
    RuntimeError: where the run does not complete.
    """
    cluster = Cluster(family.with_policy(policy, interval), family.world(seed))
    outcome = cluster.run()
    if outcome.status != "completed":
        raise RuntimeError(f"{policy} {interval}, seed {seed}: {outcome.error}")
    summary = cluster.scheduler.summary()
    return Result(
        per_s=summary["trajectories"]["trained"] / cluster.now_s,
        swaps=summary["swaps"],
        expired=summary["trajectories"]["expired"],
        seconds=cluster.now_s,
    )


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Of one family; results of each policy by seed, in the order of ``seeds``."""

    family: str
    intervals: Mapping[int, Sequence[Result]]
    others: Mapping[str, Sequence[Result]]

    @property
    def best_interval(self) -> int:
        """In hindsight: the one of the largest mean over the seeds."""
        return max(self.intervals, key=lambda k: throughput(self.intervals[k]))

    def interval_ratio(self, interval: int) -> float | None:
        """None where the family's bound does not allow the interval."""
        results = self.intervals.get(interval)
        return None if results is None else self._ratio(results)

    def ratio(self, policy: str) -> float:
        return self._ratio(self.others[policy])

    def _ratio(self, results: Sequence[Result]) -> float:
        return throughput(results) / throughput(self.intervals[self.best_interval])


def throughput(results: Sequence[Result]) -> float:
    return fmean(result.per_s for result in results)


def compare(
    name: str,
    family: Family,
    *,
    seeds: Sequence[int],
    intervals: Sequence[int] = INTERVALS,
    others: Sequence[Literal["drain", "adaptive"]] = ("drain", "adaptive"),
) -> Comparison:
    """Fixed intervals as far as the bound allows them, and ``others``.

    ``drain`` waits for one batch, as the synchronous baseline does.
    """
    largest = min(max_swap_interval(family.settings.max_staleness), family.settings.steps)
    return Comparison(
        family=name,
        intervals={
            k: [simulate(family, "interval", k, seed) for seed in seeds]
            for k in intervals
            if k <= largest
        },
        others={policy: [simulate(family, policy, 1, seed) for seed in seeds] for policy in others},
    )


def worst(comparisons: Sequence[Comparison], policy: str | int) -> tuple[float, str]:
    """A policy's worst family; a fixed interval that a bound forbids counts as its largest."""

    def ratio(comparison: Comparison) -> float:
        if isinstance(policy, str):
            return comparison.ratio(policy)
        allowed = max(k for k in comparison.intervals if k <= policy)
        found = comparison.interval_ratio(allowed)
        assert found is not None
        return found

    return min((ratio(c), c.family) for c in comparisons)
