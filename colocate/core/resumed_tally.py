"""What became of the trajectories of an earlier life that a resumed run found in its checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from colocate.core.trajectory import Trajectory


@dataclass(slots=True)
class ResumedTally:
    """Counters; all are zero in a run that resumes nothing.

    Attributes:
        finished: Found finished, and not trained yet.
        partials: Found unfinished, with tokens sampled.
        begun: Found without tokens.
        tokens: Sampled tokens of all of them. With them a life's tokens balance: generated and
            resumed are trained, discarded or resident.
        continued: Partials whose environment was replayed, and that went on from their tokens.
        restarted: Those whose environment could not be replayed: they began again.
        given_up: Those that the run has no place for: their prompts were drawn again.
    """

    finished: int = 0
    partials: int = 0
    begun: int = 0
    tokens: int = 0
    continued: int = 0
    restarted: int = 0
    given_up: int = 0
    discarded_tokens: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def find(self, trajectories: Iterable[Trajectory]) -> None:
        for trajectory in trajectories:
            has_tokens = trajectory.num_sampled_tokens > 0
            self.finished += not trajectory.is_unfinished
            self.partials += trajectory.is_unfinished and has_tokens
            self.begun += trajectory.is_unfinished and not has_tokens
            self.tokens += trajectory.num_sampled_tokens

    def restart(self, reason: str, num_discarded_tokens: int) -> None:
        self.restarted += 1
        self._discard(reason, num_discarded_tokens)

    def give_up(self, reason: str, num_discarded_tokens: int) -> None:
        self.given_up += 1
        self._discard(reason, num_discarded_tokens)

    def _discard(self, reason: str, num_discarded_tokens: int) -> None:
        self.reasons[reason] += 1
        self.discarded_tokens += num_discarded_tokens

    def summary(self) -> dict[str, Any]:
        return {
            "finished": self.finished,
            "partials": self.partials,
            "begun": self.begun,
            "tokens": self.tokens,
            "continued": self.continued,
            "restarted": self.restarted,
            "given_up": self.given_up,
            "discarded_tokens": self.discarded_tokens,
            "reasons": dict(self.reasons.most_common()),
        }
