"""Going back to the last checkpoint in the same life: what is kept for it, and what it takes.

        OffloadTrainer(checkpoint) --> CheckpointWritten          TrainerLost
                  |                           |                       |
        what the run is now            is what a rollback      RollBack, ResumeTrajectory,
        is put aside                   goes back to            StartPorts: as a resumed life begins

What the run did after that point is abandoned: its books are as they were, its prompts are drawn
again, and whoever was resident then is resident again, as attempts of a new number, so that
whatever comes in late from the abandoned line is known by its attempt. What was measured and
learned stays, and so does time.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

from colocate.core.actions import Action, ResumeTrajectory
from colocate.core.books import Books
from colocate.core.buffer import Buffer
from colocate.core.buffer_snapshot import BufferSnapshot
from colocate.core.events import PromptCursor
from colocate.core.replay_buffer import ReplayBuffer
from colocate.core.types import Version


@dataclass(frozen=True, slots=True, kw_only=True)
class RestorePoint:
    """The run at one moment, as a checkpoint of that moment holds it. ``books`` are a copy."""

    version: Version
    cursor: PromptCursor
    buffer: BufferSnapshot
    books: Books

    @classmethod
    def take(
        cls, version: Version, cursor: PromptCursor, buffer: BufferSnapshot, books: Books
    ) -> RestorePoint:
        return cls(version=version, cursor=cursor, buffer=buffer, books=copy.deepcopy(books))


@dataclass(slots=True, kw_only=True)
class Abandoned:
    """What rollbacks have cost, all together."""

    steps: int = 0
    trajectories: int = 0
    tokens: int = 0

    @classmethod
    def between(cls, point: RestorePoint, books: Books) -> Abandoned:
        """What the books have beyond those of the point."""
        return cls(
            steps=books.steps - point.books.steps,
            trajectories=books.admitted - point.books.admitted,
            tokens=books.tokens["generated"] - point.books.tokens["generated"],
        )

    def add(self, other: Abandoned) -> None:
        self.steps += other.steps
        self.trajectories += other.trajectories
        self.tokens += other.tokens


def take_back(
    point: RestorePoint,
    buffer: Buffer,
    replays: ReplayBuffer,
    books: Books,
    *,
    attempt: int,
    time_s: float,
) -> list[Action]:
    """Puts buffers and books back; returns what is to be done for those who are resident again.

    Args:
        attempt: What each of them has from now on; none has had it before.
    """
    replays.restore(point.buffer.replays)
    buffer.go_back(point.buffer.residents, replays)
    unused = [replay for lease in buffer.return_leases(time_s) for replay in lease.replays]
    books.roll_back(point.books)
    books.taken_back.find(buffer)
    actions: list[Action] = [*replays.take_up(unused, point.version)]
    for trajectory in buffer:
        trajectory.attempt = attempt
        if trajectory.is_unfinished:
            buffer.take_up(trajectory, time_s)
            actions.append(
                ResumeTrajectory(trajectory=trajectory.id, group=trajectory.group, attempt=attempt)
            )
    return actions
