"""The books of a run: everything that ends is counted, with its reason.

The scheduler enters; ``summary`` is the part of ``summary.json`` that follows from decisions.
"""

from __future__ import annotations

import copy
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from colocate.core import staleness
from colocate.core.evaluation_tally import EvaluationTally
from colocate.core.group_tally import GroupTally
from colocate.core.mismatch import MismatchBook
from colocate.core.phases import ENDS, Phase
from colocate.core.replay_buffer import Replay
from colocate.core.resumed_tally import ResumedTally
from colocate.core.reward_book import RewardBook
from colocate.core.types import Ending, Span, Version

MAX_REASONS = 500
"""Told apart; an environment's errors may differ each time, and a run may last for weeks."""

OTHER_REASONS = "others, each in events.jsonl"

MAX_WINDOWS = 128
"""Of an environment's call that lasts over more swaps, what the last of them hid is counted."""

_NOT_UNDONE = frozenset(
    {"bound", "evaluations", "late_events", "phase_s", "taken_back", "warnings", "_swap_windows"}
)
"""What a rollback leaves as it is: time has passed, and people were told."""


@dataclass(slots=True)
class Books:
    """Counters. Times in seconds on the run's clock."""

    bound: int
    steps: int = 0
    swaps: int = 0
    admitted: int = 0
    endings: Counter[Ending] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    truncated: Counter[str] = field(default_factory=Counter)
    late_events: int = 0
    spares: Counter[str] = field(default_factory=Counter)
    warnings: list[str] = field(default_factory=list)
    restarts: int = 0
    tokens: Counter[str] = field(default_factory=Counter)
    lags: Counter[int] = field(default_factory=Counter)
    carried: int = 0
    max_crossings: int = 0
    max_spans: int = 0
    environment_steps: int = 0
    environment_failures: int = 0
    busy_s: float = 0.0
    hidden_s: float = 0.0
    rewards: RewardBook = field(default_factory=RewardBook)
    mismatch: MismatchBook = field(default_factory=MismatchBook)
    replayed: int = 0
    replay_lags: Counter[int] = field(default_factory=Counter)
    resumed: ResumedTally = field(default_factory=ResumedTally)
    taken_back: ResumedTally = field(default_factory=ResumedTally)
    groups: GroupTally = field(default_factory=GroupTally)
    evaluations: EvaluationTally = field(default_factory=EvaluationTally)
    phase_s: defaultdict[Phase, float] = field(default_factory=lambda: defaultdict(float))
    _swap_windows: deque[tuple[float, float | None]] = field(
        default_factory=lambda: deque(maxlen=MAX_WINDOWS)
    )

    def enter_phase(self, left: Phase, entered: Phase, since_s: float, time_s: float) -> None:
        if left not in ENDS:
            self.phase_s[left] += time_s - since_s
        if entered is Phase.PARKING:
            self._swap_windows.append((time_s, None))
        elif left is Phase.KV_WAKING and self._swap_windows:
            started_s, ended_s = self._swap_windows[-1]
            # An engine that was lost in the rollout wakes with no swap under way.
            self._swap_windows[-1] = (started_s, time_s if ended_s is None else ended_s)

    def environment(self, busy_s: float, time_s: float, *, is_step: bool) -> None:
        """An environment was busy for ``busy_s`` up to ``time_s``; part of it under a swap."""
        self.environment_steps += is_step
        self.busy_s += busy_s
        began_s = time_s - busy_s
        for started_s, ended_s in reversed(self._swap_windows):
            last_s = time_s if ended_s is None else min(time_s, ended_s)
            if last_s <= began_s:
                break
            self.hidden_s += max(0.0, last_s - max(began_s, started_s))

    def end(self, ending: Ending, reason: str, num_discarded_tokens: int) -> None:
        self.endings[ending] += 1
        if reason:
            key = f"{ending}: {reason}"
            if key not in self.reasons and len(self.reasons) >= MAX_REASONS:
                key = f"{ending}: {OTHER_REASONS}"
            self.reasons[key] += 1
        self.tokens["discarded"] += num_discarded_tokens

    def cancel_spare(self, reason: str, num_sampled_tokens: int) -> None:
        self.end(Ending.CANCELLED, reason, num_sampled_tokens)
        self.spares["cancelled"] += 1
        self.spares["tokens"] += num_sampled_tokens

    def redundancy(self) -> dict[str, float | None]:
        """How many spares were cancelled, and the bias on lengths that it brings.

        Means of sampled tokens: of trained trajectories, and of the cancelled ones when they were
        cut, which is less than they would have become.
        """
        num_trained, num_cancelled = self.endings[Ending.TRAINED], self.spares["cancelled"]
        return {
            "cancelled": num_cancelled,
            "cancelled_tokens": self.spares["tokens"],
            "mean_tokens_trained": self.tokens["trained"] / num_trained if num_trained else None,
            "mean_tokens_cancelled": self.spares["tokens"] / num_cancelled
            if num_cancelled
            else None,
        }

    def train(
        self,
        version: Version,
        spans: Sequence[Span],
        rewards: Sequence[Sequence[float]],
        replays: Sequence[Replay],
    ) -> None:
        """A step was trained.

        Args:
            spans: Of what it trained for the first time.
            rewards: Of the same, group by group.
            replays: What it trained once more; it is in no figure but those of replay.
        """
        self.steps += 1
        for span in spans:
            self.lags[staleness.lag(version, span.version)] += span.length
            self.tokens["trained"] += span.length
        own = [reward for group in rewards for reward in group]
        if own:
            self.rewards.enter(version, sum(own) / len(own))
        self.replayed += sum(len(replay.members) for replay in replays)
        for span in (span for replay in replays for span in replay.spans):
            self.replay_lags[staleness.lag(version, span.version)] += span.length
        self.groups.train(rewards, [replay.replaced for replay in replays])

    def roll_back(self, kept: Books) -> None:
        """Becomes a copy of what the books were: what was entered since never came to count."""
        for each in fields(self):
            if each.name not in _NOT_UNDONE:
                setattr(self, each.name, copy.deepcopy(getattr(kept, each.name)))

    def summary(self, num_resident: int) -> dict[str, Any]:
        """The keys of ``summary.json`` that the books know, in its own shape."""
        return {
            "steps": self.steps,
            "swaps": self.swaps,
            "phase_s": {str(p): round(self.phase_s[p], 6) for p in Phase if p not in ENDS},
            "trajectories": {
                "admitted": self.admitted,
                **{str(e): self.endings[e] for e in Ending},
                "resident": num_resident,
                "replayed": self.replayed,
            },
            "reasons": dict(self.reasons.most_common()),
            "truncated": dict(self.truncated.most_common()),
            "late_events": self.late_events,
            "restarts": self.restarts,
            "tokens": {
                name: self.tokens[name]
                for name in ("generated", "trained", "carried", "reprefilled", "discarded")
            },
            "staleness": {
                "bound": self.bound,
                "max_trained_lag": max(self.lags, default=None),
                "mean_trained_lag": _mean(self.lags),
                "histogram": {str(k): n for k, n in sorted(self.lags.items())},
            },
            "resumed": self.resumed.summary(),
            "redundancy": self.redundancy(),
            "replay": {
                "max_lag": max(self.replay_lags, default=None),
                "mean_lag": _mean(self.replay_lags),
            },
            "partials": {
                "carried": self.carried,
                "max_crossings": self.max_crossings,
                "max_spans": self.max_spans,
            },
            "environment": {
                "steps": self.environment_steps,
                "busy_s": round(self.busy_s, 6),
                "hidden_s": round(self.hidden_s, 6),
                "failures": self.environment_failures,
            },
            "reward": {
                "first": self.rewards.first,
                "last": self.rewards.last,
                "best": self.rewards.best,
            },
            "mismatch": self.mismatch.summary(),
            "eval": self.evaluations.summary(),
        }


def _mean(lags: Counter[int]) -> float | None:
    """Over tokens, from their number by lag."""
    num_tokens = lags.total()
    return sum(lag * count for lag, count in lags.items()) / num_tokens if num_tokens else None
