"""The books of a run's evaluations, apart from those of what it trains."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from colocate.core.events import EvaluationEnded
from colocate.core.types import Version

MAX_REASONS = 100
OTHER_REASONS = "others, each in events.jsonl"
LEADING = "pass@1"
"""The metric that says which evaluation was the best."""


@dataclass(slots=True)
class EvaluationTally:
    """Counters, and the metrics of each evaluation that scored something and was not cut.

    Attributes:
        cut: Evaluations that were cut off, by the reason.
        lost: Samples without a verdict, by what was wrong with each.
        tokens: Sampled by requests that came back in time; in no other figure of the books.
        seconds: From each evaluation's beginning to its end.
    """

    num_ended: int = 0
    cut: Counter[str] = field(default_factory=Counter)
    samples: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    tokens: int = 0
    seconds: float = 0.0
    results: list[dict[str, float]] = field(default_factory=list)

    def end(self, event: EvaluationEnded, took_s: float, *, counts: bool) -> None:
        """``counts``: whether its metrics are of the line that survives."""
        self.num_ended += 1
        self.seconds += took_s
        self.samples["scored"] += event.num_scored
        self.samples["cut"] += event.num_cut
        for reason, count in event.lost.items():
            is_new = reason not in self.lost and len(self.lost) >= MAX_REASONS
            self.lost[OTHER_REASONS if is_new else reason] += count
            self.samples["lost"] += count
        if event.metrics and counts and not event.num_cut:
            self.results.append({"step": event.version, **event.metrics})

    def go_back(self, version: Version) -> None:
        """What was measured of later versions is of a line that is abandoned."""
        self.results = [result for result in self.results if result["step"] <= version]

    def summary(self) -> dict[str, Any] | None:
        """``summary.json``'s ``eval``; None of a run that evaluated nothing."""
        if not self.num_ended and not self.cut:
            return None
        return {
            "evaluations": self.num_ended,
            "cut": dict(self.cut.most_common()),
            "samples": {name: self.samples[name] for name in ("scored", "lost", "cut")},
            "lost": dict(self.lost.most_common()),
            "tokens": self.tokens,
            "seconds": round(self.seconds, 6),
            **first_last_best(self.results),
        }


def first_last_best(results: list[dict[str, float]]) -> dict[str, dict[str, float] | None]:
    """Of evaluations in the order of their steps. Of equally good ones the earliest is the best."""
    return {
        "first": results[0] if results else None,
        "last": results[-1] if results else None,
        "best": max(results, key=lambda result: result.get(LEADING, -math.inf), default=None),
    }
