"""How often processes may be started anew before a run gives up, and how often they were."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Process(StrEnum):
    """What can be lost and started anew. A rank stands for the trainer, a worker for the engine."""

    ENGINE = "engine"
    TRAINER = "trainer"


@dataclass(slots=True)
class Restarts:
    """Counts restarts of all processes together, in a window that moves with the run's clock.

    Args:
        limit: Restarts within ``window_s``; 0: none at all.
    """

    limit: int
    window_s: float
    numbers: Counter[Process] = field(default_factory=Counter)
    causes: Counter[str] = field(default_factory=Counter)
    _times_s: deque[float] = field(default_factory=deque)

    def allow(self, process: Process, cause: str, time_s: float) -> bool:
        """Whether one more is within the bound; if so, it is counted."""
        while self._times_s and self._times_s[0] <= time_s - self.window_s:
            self._times_s.popleft()
        if len(self._times_s) >= self.limit:
            return False
        self._times_s.append(time_s)
        self.numbers[process] += 1
        self.causes[f"{process}: {cause}"] += 1
        return True

    def explain_refusal(self, cause: str) -> str:
        """The cause, and why it is not recovered from."""
        if not self.limit:
            return cause
        return (
            f"{cause.rstrip('. ')}. It is not started again: there were {len(self._times_s)} "
            f"restarts within supervision.restart_window_s = {self.window_s:g} s, and "
            f"supervision.max_restarts is {self.limit}"
        )

    def summary(self) -> dict[str, Any]:
        return {
            **{str(process): self.numbers[process] for process in Process},
            "causes": dict(self.causes.most_common()),
        }
