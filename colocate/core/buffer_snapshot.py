"""All that the buffer knows, as plain frozen values: what a checkpoint holds of it.

``Buffer.snapshot`` and ``ReplayBuffer.snapshot`` take it, their ``restore`` puts it back, and the
buffer is then what it was, in every order that a decision could depend on. What follows from the
rest (ages, counts, plans) is not in it, nor are the stories, which are for people. Token content
lies outside of the core; a record has its length, its number of turns and its digest.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, fields

from colocate.core.trajectory import UNFINISHED, State, Trajectory
from colocate.core.types import (
    BatchId,
    Ending,
    GroupId,
    ReplayLease,
    Span,
    TrajectoryId,
    Version,
)

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryRecord:
    """A trajectory as the buffer knows it; the fields are those of ``Trajectory``."""

    id: TrajectoryId
    group: GroupId
    state: State
    attempt: int
    spans: tuple[Span, ...]
    digest: str
    num_context_tokens: int
    num_turns: int
    reward: float | None
    crossings: int
    num_requests: int
    request: str | None
    resumed: bool
    ending: Ending | None

    @classmethod
    def of(cls, trajectory: Trajectory) -> TrajectoryRecord:
        return cls(**{f.name: getattr(trajectory, f.name) for f in fields(cls)})

    def revive(self) -> Trajectory:
        """A trajectory with an empty story."""
        return Trajectory(**{f.name: getattr(self, f.name) for f in fields(self)})

    @property
    def is_unfinished(self) -> bool:
        return self.state in UNFINISHED

    @property
    def num_sampled_tokens(self) -> int:
        return sum(span.length for span in self.spans)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecord:
    """``members`` in slot order."""

    id: GroupId
    members: tuple[TrajectoryId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayUse:
    """A replay that is out, and the rewards of the group whose place it took."""

    lease: ReplayLease
    replaced: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """A batch that was leased and not acknowledged."""

    batch: BatchId
    version: Version
    groups: tuple[GroupId, ...]
    trajectories: tuple[TrajectoryId, ...]
    replays: tuple[ReplayUse, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRecord:
    """A trained group that may be replayed; ``members`` bore its gradient."""

    group: GroupId
    origin: BatchId
    members: tuple[TrajectoryRecord, ...]
    num_uses: int
    num_out: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentsRecord:
    """``trajectories`` and ``groups`` in the order of admission, ``complete`` of completion.

    Ended trajectories that keep a slot are among them.
    """

    group_size: int
    trajectories: tuple[TrajectoryRecord, ...] = ()
    groups: tuple[GroupRecord, ...] = ()
    complete: tuple[GroupId, ...] = ()
    leases: tuple[LeaseRecord, ...] = ()
    next_trajectory: int = 0
    next_batch: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplaysRecord:
    """``kept`` in the order in which groups were kept."""

    kept: tuple[KeptRecord, ...] = ()
    next_replay: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BufferSnapshot:
    """Raises:
    ValueError: of another schema, or at odds with itself.
    """

    residents: ResidentsRecord
    replays: ReplaysRecord = ReplaysRecord()
    schema: int = SCHEMA

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise ValueError(f"a buffer of schema {self.schema}, not {SCHEMA}")
        members = Counter(t for group in self.residents.groups for t in group.members)
        if members != Counter(record.id for record in self.residents.trajectories):
            raise ValueError("a buffer whose groups are not made of its trajectories")

    @property
    def contents(self) -> tuple[TrajectoryRecord, ...]:
        """Those whose content may be needed again: resident and not ended, or kept for replay."""
        residents = (r for r in self.residents.trajectories if r.state is not State.ENDED)
        return (*residents, *(m for kept in self.replays.kept for m in kept.members))
