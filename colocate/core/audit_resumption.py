"""The independent check of what a run took up of an earlier life; see ``colocate.core.audit``.

Whatever the checkpoint held goes on, ends, begins again or is given up, by name, and in one line
of the journal: nothing is lost on the way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from colocate.core import actions as act
from colocate.core.buffer_snapshot import ResidentsRecord, TrajectoryRecord
from colocate.core.types import BatchId, Ending, GroupId, TrajectoryId


@dataclass(slots=True)
class Life:
    """A trajectory as the journal tells it; ``versions`` are its sampled tokens by version."""

    group: GroupId
    attempt: int = 0
    versions: Counter[int] = field(default_factory=Counter)
    digest: str = ""
    finished: bool = False
    reward: float = 0.0
    ending: Ending | None = None
    trained_in: BatchId | None = None


def tokens_by_version(record: TrajectoryRecord) -> Counter[int]:
    versions: Counter[int] = Counter()
    for span in record.spans:
        versions[span.version] += span.length
    return versions


class ResumptionAuditor:
    """Which trajectories of an earlier life wait for a word on what becomes of them."""

    def __init__(self) -> None:
        self._open: dict[TrajectoryId, int] = {}

    def restore(self, residents: ResidentsRecord) -> dict[TrajectoryId, Life]:
        """The lives that the checkpoint held."""
        lives = {
            record.id: Life(
                group=record.group,
                attempt=record.attempt,
                versions=tokens_by_version(record),
                digest=record.digest,
                finished=not record.is_unfinished,
                reward=record.reward or 0.0,
            )
            for record in residents.trajectories
            if record.ending is None
        }
        self._open = {t: life.attempt for t, life in lives.items() if not life.finished}
        return lives

    def expect(self, lives: Mapping[TrajectoryId, Life]) -> None:
        """After a rollback: whoever is unfinished again is to be resumed in the same line."""
        self._open = {
            trajectory: life.attempt
            for trajectory, life in lives.items()
            if life.ending is None and not life.finished
        }

    def check_action(self, action: act.Action) -> Iterator[str]:
        match action:
            case act.ResumeTrajectory():
                if self._open.pop(action.trajectory, None) != action.attempt:
                    yield f"trajectory {action.trajectory} is none to resume"
            case act.StartTrajectory() | act.EndTrajectory():
                self._open.pop(action.trajectory, None)
            case act.GiveUpGroup():
                for trajectory in action.trajectories:
                    self._open.pop(trajectory, None)
            case _:
                pass

    def check_line(self) -> Iterator[str]:
        if self._open:
            yield f"trajectories {[*self._open][:5]} of the checkpoint were forgotten"
        self._open = {}
