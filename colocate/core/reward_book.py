"""Mean rewards of the steps of a run, in memory that does not grow with their number."""

from __future__ import annotations

from dataclasses import dataclass, field

from colocate.core.types import Version

NUM_KEPT = 128
"""Steps: a checkpoint after more of them is rated by the last."""


@dataclass(slots=True)
class RewardBook:
    """Of what each step trained for the first time; a step of replays alone has none."""

    first: float | None = None
    last: float | None = None
    best: float | None = None
    _recent: dict[Version, float] = field(default_factory=dict)

    def enter(self, version: Version, mean: float) -> None:
        """Of the step on the weights of this version."""
        if self.first is None:
            self.first = mean
        self.last = mean
        self.best = mean if self.best is None else max(self.best, mean)
        self._recent[version] = mean
        if len(self._recent) > NUM_KEPT:
            del self._recent[next(iter(self._recent))]

    def between(self, since: Version, version: Version) -> list[float]:
        """Of the steps on the weights from ``since`` to before ``version``.

        Of more than the last ``NUM_KEPT`` steps that have a reward, only these.
        """
        return [mean for of, mean in self._recent.items() if since <= of < version]

    def recent(self, number: int) -> list[float]:
        """So many of the last ones, the oldest first; at most ``NUM_KEPT``."""
        return list(self._recent.values())[-number:]
