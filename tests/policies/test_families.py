"""The adaptive policy against the best fixed interval that hindsight would choose.

Everything is simulated, and each seed gives the same run on every machine, so these are exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tools.policy_bench.compare import INTERVALS, Comparison, compare, worst
from tools.policy_bench.families import FAMILIES

pytestmark = pytest.mark.timeout(3600)

AIM = 0.97


@pytest.mark.parametrize(
    "name",
    [
        "short generations, exponential latency",
        "Pareto 1.5 latency, dear swap",
        "engine that a few requests saturate",
    ],
)
def test_adaptive_comes_near_the_best_fixed_interval_in_hindsight(name: str) -> None:
    found = compare(name, FAMILIES[name], seeds=(0,), others=("adaptive",))
    assert found.ratio("adaptive") >= AIM


@pytest.fixture(scope="module")
def all_families() -> Sequence[Comparison]:
    return [
        compare(name, family, seeds=range(4), others=("adaptive",))
        for name, family in FAMILIES.items()
    ]


@pytest.mark.nightly
@pytest.mark.parametrize("name", FAMILIES)
def test_adaptive_comes_near_it_in_every_family(
    name: str, all_families: Sequence[Comparison]
) -> None:
    (found,) = [c for c in all_families if c.family == name]
    assert found.ratio("adaptive") >= AIM


@pytest.mark.nightly
def test_the_worst_family_of_adaptive_is_better_than_the_worst_of_every_fixed_interval(
    all_families: Sequence[Comparison],
) -> None:
    adaptive, _ = worst(all_families, "adaptive")
    for interval in INTERVALS:
        assert adaptive > worst(all_families, interval)[0], interval
