"""The versioned trajectory buffer: what is resident, how old it is, and what may be trained.

Only the scheduler calls it. Groups are leased and expired as a whole, as they are admitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from colocate.core import staleness
from colocate.core.buffer_snapshot import (
    GroupRecord,
    LeaseRecord,
    ReplayUse,
    ResidentsRecord,
    TrajectoryRecord,
)
from colocate.core.replay_buffer import Replay, ReplayBuffer
from colocate.core.residents import Residents
from colocate.core.trajectory import ProtocolError, State, Trajectory, Trigger
from colocate.core.types import BatchId, Ending, GroupId, Span, TrajectoryId, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Lease:
    """A batch on its way through the trainer.

    ``trajectories`` are those that bear a gradient (masked ones do not), in slot order, group by
    group. ``replays`` took the place of groups that are in neither.
    """

    batch: BatchId
    version: Version
    groups: tuple[GroupId, ...]
    trajectories: tuple[TrajectoryId, ...]
    replays: tuple[Replay, ...] = ()

    def record(self) -> LeaseRecord:
        return LeaseRecord(
            batch=self.batch,
            version=self.version,
            groups=self.groups,
            trajectories=self.trajectories,
            replays=tuple(ReplayUse(lease=r.lease, replaced=r.replaced) for r in self.replays),
        )

    @classmethod
    def revive(cls, record: LeaseRecord, replays: ReplayBuffer) -> Lease:
        return cls(
            batch=record.batch,
            version=record.version,
            groups=record.groups,
            trajectories=record.trajectories,
            replays=tuple(replays.revive(use) for use in record.replays),
        )


class Buffer(Residents):
    """Residents, and the leases on complete groups."""

    def __init__(
        self,
        *,
        group_size: int,
        groups_per_step: int,
        max_staleness: int,
        redundant_per_group: int = 0,
    ) -> None:
        super().__init__(group_size=group_size, redundant_per_group=redundant_per_group)
        self._groups_per_step = groups_per_step
        self._max_staleness = max_staleness
        self._leases: dict[BatchId, Lease] = {}
        self._next_batch = 0

    # What is there

    @property
    def num_groups(self) -> int:
        """Resident groups; one that a lease has replaced counts while that lease is out."""
        return len(self._groups) + sum(len(lease.replays) for lease in self._leases.values())

    @property
    def num_leased_groups(self) -> int:
        return sum(len(lease.groups) for lease in self._leases.values())

    @property
    def incomplete_groups(self) -> list[GroupId]:
        """Neither complete nor leased, in the order of admission."""
        leased = {group for lease in self._leases.values() for group in lease.groups}
        return [g for g in self._groups if g not in self._complete and g not in leased]

    def rewards(self) -> dict[TrajectoryId, float]:
        """Of all trajectories that have one and may be in a batch: finished, leased, replayed."""
        replayed = (m for ls in self._leases.values() for r in ls.replays for m in r.members)
        return {t.id: t.reward for t in (*self, *replayed) if t.reward is not None}

    # Across a restart

    def snapshot(self) -> ResidentsRecord:
        """All of it but the content, as ``restore`` takes it."""
        return ResidentsRecord(
            group_size=self._group_size,
            trajectories=tuple(TrajectoryRecord.of(t) for t in self._trajectories.values()),
            groups=tuple(
                GroupRecord(id=group.id, members=tuple(group.members))
                for group in self._groups.values()
            ),
            complete=tuple(self._complete),
            leases=tuple(lease.record() for lease in self._leases.values()),
            next_trajectory=self._next_trajectory,
            next_batch=self._next_batch,
        )

    def restore(self, record: ResidentsRecord, replays: ReplayBuffer) -> None:
        """Becomes what was recorded; what it held before is forgotten.

        Args:
            replays: Restored before, from the same snapshot: replays that are out are its members.
        """
        self._restore_residents(record)
        self._leases = {lease.batch: Lease.revive(lease, replays) for lease in record.leases}
        self._next_batch = record.next_batch

    def go_back(self, record: ResidentsRecord, replays: ReplayBuffer) -> None:
        """As ``restore``, but no number is ever given twice, of trajectories or of batches."""
        numbers = self._next_trajectory, self._next_batch
        self.restore(record, replays)
        self._next_trajectory, self._next_batch = map(
            max, numbers, (self._next_trajectory, self._next_batch)
        )

    def return_leases(self, time_s: float) -> list[Lease]:
        """Takes back batches that will not be acknowledged; their groups can be leased again."""
        returned = list(self._leases.values())
        self._leases.clear()
        for lease in returned:
            for trajectory in lease.trajectories:
                self._trajectories[trajectory].move(Trigger.RETURNED, time_s)
            self._complete.update(dict.fromkeys(lease.groups))
        self._planned.clear()
        self._fillable.clear()
        return returned

    # Being trained

    def plan(self, version: Version, max_batches: int) -> list[list[GroupId]]:
        """The batches that a training phase beginning at ``version`` could lease now."""
        if (known := self._planned.get((version, max_batches))) is not None:
            return known
        complete = list(self._complete)
        chosen = staleness.assign_batches(
            [self.oldest(group) for group in complete],
            version=version,
            max_staleness=self._max_staleness,
            groups_per_batch=self._groups_per_step,
            max_batches=max_batches,
        )
        batches = [[complete[i] for i in batch] for batch in chosen]
        self._planned[version, max_batches] = batches
        return batches

    def plan_with(
        self, incomplete: Sequence[GroupId], version: Version, num_batches: int
    ) -> list[GroupId]:
        """Those of the incomplete groups that ``plan`` would hold if all of them were complete."""
        candidates = [*self._complete, *incomplete]
        chosen = staleness.assign_batches(
            [self.oldest(group) for group in candidates],
            version=version,
            max_staleness=self._max_staleness,
            groups_per_batch=self._groups_per_step,
            max_batches=num_batches,
        )
        first = len(self._complete)
        return [candidates[i] for batch in chosen for i in batch if i >= first]

    def num_fillable_batches(self, version: Version, max_batches: int) -> int:
        """Batches that would be trained if every resident trajectory were finished in time.

        ``version`` is the trainer's; batches that are leased begin there.
        """
        if (known := self._fillable.get((version, max_batches))) is not None:
            return known
        leased = {group for lease in self._leases.values() for group in lease.groups}
        further = staleness.assign_batches(
            [self.oldest(group) for group in self._groups if group not in leased],
            version=Version(version + len(self._leases)),
            max_staleness=self._max_staleness,
            groups_per_batch=self._groups_per_step,
            max_batches=max_batches,
        )
        num_batches = len(self._leases) + len(further)
        self._fillable[version, max_batches] = num_batches
        return num_batches

    def lease(self, version: Version, max_batches: int, time_s: float) -> list[Lease]:
        """Leases up to ``max_batches`` full batches; the j-th begins at ``version + j``."""
        leases = []
        for j, groups in enumerate(self.plan(version, max_batches)):
            members = [m for g in groups for m in self._members(g) if m.state is State.FINISHED]
            for member in members:
                member.move(Trigger.LEASED, time_s)
            for group in groups:
                del self._complete[group]
            lease = Lease(
                batch=BatchId(self._next_batch),
                version=Version(version + j),
                groups=tuple(groups),
                trajectories=tuple(m.id for m in members),
            )
            self._next_batch += 1
            self._leases[lease.batch] = lease
            leases.append(lease)
        self._planned.clear()
        self._fillable.clear()
        return leases

    def substitute(
        self, lease: Lease, instead: Mapping[GroupId, Replay], time_s: float
    ) -> tuple[Lease, list[Trajectory]]:
        """Takes groups out of a lease that has not begun, for the replays in their place.

        Returns:
            The lease as it is now, and the trajectories that this ended, as filtered.
        """
        ended: list[Trajectory] = []
        for group in instead:
            ended += self.end_group(group, Ending.FILTERED, time_s)
        gone = {trajectory.id for trajectory in ended}
        changed = replace(
            lease,
            groups=tuple(g for g in lease.groups if g not in instead),
            trajectories=tuple(t for t in lease.trajectories if t not in gone),
            replays=(*lease.replays, *instead.values()),
        )
        self._leases[lease.batch] = changed
        self._fillable.clear()
        return changed, ended

    def stale_groups(self, version: Version) -> list[GroupId]:
        """Groups that no step beginning at ``version`` or later could train any more."""
        leased = {group for lease in self._leases.values() for group in lease.groups}
        return [
            group
            for group in self._groups
            if group not in leased
            and not staleness.is_within_bound(version, self.oldest(group), self._max_staleness)
        ]

    def leased(self, batch: BatchId) -> Lease:
        """Raises:
        ProtocolError: where the batch is not out: acknowledged already, or never leased.
        """
        try:
            return self._leases[batch]
        except KeyError:
            raise ProtocolError(
                f"batch {batch} is not leased; out are {sorted(self._leases) or 'none'}"
            ) from None

    def trained_spans(self, lease: Lease) -> list[Span]:
        """The spans that the lease's gradient is made of."""
        return [s for t in lease.trajectories for s in self._trajectories[t].spans]

    def check_bound(self, lease: Lease) -> None:
        """The hard check, where the thing is consumed.

        Raises:
            ProtocolError: where a token of the batch is older than the bound allows.
        """
        for group in lease.groups:
            if not staleness.is_within_bound(
                lease.version, self.oldest(group), self._max_staleness
            ):
                raise ProtocolError(
                    f"batch {lease.batch} begins at version {lease.version}, and its group "
                    f"{group} has tokens of version {self.oldest(group)}: more than "
                    f"{self._max_staleness} behind"
                )

    def acknowledge(self, lease: Lease, time_s: float) -> list[Trajectory]:
        """Ends the batch's trajectories as trained and forgets its groups; returns them."""
        del self._leases[lease.batch]
        self._fillable.clear()
        trained = []
        for group in lease.groups:
            for member in self._drop(group):
                if member.state is State.LEASED:
                    self._end(member, Ending.TRAINED, time_s)
                    trained.append(member)
        return trained
