"""The independent check of rollbacks; see ``colocate.core.audit``.

It keeps what was known when a checkpoint was asked for, and takes that for the truth when the run
goes back to it. What came in between is of no line that counts, but its numbers are never used
again: no trajectory's, and no attempt's.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.audit_replay import ReplayAuditor
from colocate.core.audit_resumption import Life
from colocate.core.types import GroupId, TrajectoryId


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """What the auditor counts, up to one line of the journal."""

    lives: dict[TrajectoryId, Life]
    admitted: dict[GroupId, list[TrajectoryId]]
    masked_slots: Counter[GroupId]
    living: Counter[GroupId]
    passed_over: set[GroupId]
    lags: Counter[int]
    num_batches: int
    version: int
    replays: ReplayAuditor

    def copy(self) -> Line:
        """Of all that is going to change: the run may come back here once more."""
        return replace(
            self,
            lives=_copies(self.lives),
            admitted={group: list(members) for group, members in self.admitted.items()},
            masked_slots=self.masked_slots.copy(),
            living=self.living.copy(),
            passed_over=set(self.passed_over),
            lags=self.lags.copy(),
            replays=copy.deepcopy(self.replays),
        )


def _copies(lives: Mapping[TrajectoryId, Life]) -> dict[TrajectoryId, Life]:
    """Copies of those that go on; what an ended one was changes no more."""
    return {
        trajectory: life
        if life.ending is not None
        else replace(life, versions=life.versions.copy())
        for trajectory, life in lives.items()
    }


class RollbackAuditor:
    """Keeps one line to go back to, and one that is about to become it."""

    def __init__(self) -> None:
        self._is_possible = False
        self._line: Line | None = None
        self._next: Line | None = None
        self._first_unknown = 0
        self._highest_attempt = 0

    def see_event(self, event: ev.Event) -> None:
        match event:
            case ev.RunStarted():
                self._is_possible = event.settings.max_restarts > 0
            case ev.CheckpointWritten() if self._next is not None:
                self._line, self._next = self._next, None
            case _:
                pass

    def is_to_be_kept(self, event: ev.Event, actions: Sequence[act.Action]) -> bool:
        """Whether the run may go back to what it is after this line."""
        saves = any(isinstance(a, act.OffloadTrainer) and a.checkpoint for a in actions)
        return self._is_possible and (saves or isinstance(event, ev.RunStarted | ev.Restored))

    def keep(self, event: ev.Event, line: Line) -> None:
        """The beginning of a life is there to go back to at once, a checkpoint when it is whole."""
        if isinstance(event, ev.RunStarted | ev.Restored):
            self._line = line
        else:
            self._next = line

    def go_back(self, action: act.RollBack) -> Line | None:
        """What is known again; None where the action names another version."""
        line = self._line
        if line is None or line.version != action.version:
            return None
        self._next = None
        return line.copy()

    def check(self, action: act.RollBack, lives: Mapping[TrajectoryId, Life]) -> Iterator[str]:
        """What is abandoned, as the action states it; and that its attempt is a new one."""
        assert self._line is not None
        self._first_unknown = max(self._first_unknown, *(t + 1 for t in lives), 0)
        num_abandoned = len(lives.keys() - self._line.lives.keys())
        if num_abandoned != action.trajectories:
            yield f"{num_abandoned} trajectories are abandoned, not {action.trajectories}"
        attempts = (life.attempt for life in lives.values())
        self._highest_attempt = max((self._highest_attempt, *attempts))
        if action.attempt <= self._highest_attempt:
            yield f"attempt {action.attempt} is none that was never made before"
        self._highest_attempt = action.attempt

    def is_known(self, trajectory: TrajectoryId) -> bool:
        """Whether an abandoned line has had a trajectory of this number."""
        return trajectory < self._first_unknown
