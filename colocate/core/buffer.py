"""The versioned trajectory buffer: what is resident, how old it is, and what may be trained.

Only the scheduler calls it. Everything happens to groups as a whole: they are admitted, aged,
leased and expired together, and a slot whose trajectory was lost is refilled.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from colocate.core import staleness
from colocate.core.replay_buffer import Replay
from colocate.core.trajectory import ProtocolError, State, Trajectory, Trigger
from colocate.core.types import BatchId, Ending, GroupId, Span, TrajectoryId, Version


@dataclass(slots=True, kw_only=True)
class Group:
    """A prompt's trajectories.

    ``members`` holds one trajectory a slot, its latest occupant, and spares until it is complete.
    ``oldest`` is kept while ``age_is_known``: a scheduler asks far more often than it changes.
    """

    id: GroupId
    members: list[TrajectoryId] = field(default_factory=list)
    oldest: Version | None = None
    age_is_known: bool = False


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


class Buffer:
    """Resident trajectories by id and by group, and the leases on complete groups."""

    def __init__(
        self,
        *,
        group_size: int,
        groups_per_step: int,
        max_staleness: int,
        redundant_per_group: int = 0,
    ) -> None:
        self._group_size = group_size
        self._redundant_per_group = redundant_per_group
        self._groups_per_step = groups_per_step
        self._max_staleness = max_staleness
        self._trajectories: dict[TrajectoryId, Trajectory] = {}
        self._groups: dict[GroupId, Group] = {}
        self._complete: dict[GroupId, None] = {}
        self._leases: dict[BatchId, Lease] = {}
        self._num_ended = 0  # masked or lost, but keeping their slot
        self._num_done = 0  # finished or leased
        self._next_trajectory = 0
        self._next_batch = 0
        self._planned: dict[tuple[Version, int], list[list[GroupId]]] = {}
        self._fillable: dict[tuple[Version, int], int] = {}

    # What is there

    def __len__(self) -> int:
        """Trajectories admitted and not ended."""
        return len(self._trajectories) - self._num_ended

    def __iter__(self) -> Iterator[Trajectory]:
        """Trajectories admitted and not ended, in the order of admission."""
        return (t for t in self._trajectories.values() if t.state is not State.ENDED)

    @property
    def num_unfinished(self) -> int:
        """Trajectories that are still generated, or in their environments."""
        return len(self) - self._num_done

    @property
    def num_groups(self) -> int:
        """Resident groups; one that a lease has replaced counts while that lease is out."""
        return len(self._groups) + sum(len(lease.replays) for lease in self._leases.values())

    @property
    def num_leased_groups(self) -> int:
        return sum(len(lease.groups) for lease in self._leases.values())

    @property
    def num_spare_members(self) -> int:
        """Members beyond the slots of their groups."""
        if not self._redundant_per_group:
            return 0
        return sum(len(group.members) - self._group_size for group in self._groups.values())

    @property
    def incomplete_groups(self) -> list[GroupId]:
        """Neither complete nor leased, in the order of admission."""
        leased = {group for lease in self._leases.values() for group in lease.groups}
        return [g for g in self._groups if g not in self._complete and g not in leased]

    @property
    def groups(self) -> tuple[GroupId, ...]:
        """Of resident trajectories, in the order of admission."""
        return tuple(self._groups)

    @property
    def next_trajectory(self) -> int:
        """The number that the next trajectory will get; smaller ones were admitted."""
        return self._next_trajectory

    def get(self, trajectory: TrajectoryId) -> Trajectory | None:
        """A resident trajectory, or None where it has ended.

        Raises:
            ProtocolError: for one that was never admitted.
        """
        if not 0 <= trajectory < self._next_trajectory:
            raise ProtocolError(f"trajectory {trajectory} was never admitted")
        found = self._trajectories.get(trajectory)
        return None if found is None or found.state is State.ENDED else found

    def rewards(self) -> dict[TrajectoryId, float]:
        """Of all trajectories that have one and may be in a batch: finished, leased, replayed."""
        replayed = (m for ls in self._leases.values() for r in ls.replays for m in r.members)
        return {t.id: t.reward for t in (*self, *replayed) if t.reward is not None}

    def rewards_of(self, group: GroupId) -> list[float]:
        """Of members that have finished and not ended, so of no masked one; in slot order."""
        members = self._members(group)
        return [m.reward for m in members if m.ending is None and m.reward is not None]

    def is_complete(self, group: GroupId) -> bool:
        """Whether it is resident, each of its slots is done, and no lease has it."""
        return group in self._complete

    # Coming in

    def admit(self, group: GroupId) -> list[Trajectory]:
        """Admits a group: one new trajectory a slot, and its spares."""
        if group in self._groups:
            raise ProtocolError(f"group {group} is resident already")
        self._groups[group] = Group(id=group)
        self._fillable.clear()
        return [
            self._new_member(group) for _ in range(self._group_size + self._redundant_per_group)
        ]

    def refill(self, lost: Trajectory) -> Trajectory | None:
        """Puts a new trajectory into the slot of one that ended without being of use.

        None where the group has a spare to take the slot.
        """
        group = self._groups[lost.group]
        if len(group.members) > self._group_size:
            self._forget(lost)
            return None
        slot = group.members.index(lost.id)
        fresh = self._new_member(lost.group)
        group.members.remove(fresh.id)
        group.members[slot] = fresh.id
        del self._trajectories[lost.id]
        self._num_ended -= 1
        self._changed(lost.group)
        return fresh

    def restart(self, trajectory: Trajectory, time_s: float) -> int:
        """Forgets what was sampled and begins again; returns the number of tokens forgotten."""
        self._num_done -= trajectory.state is State.FINISHED
        trajectory.move(Trigger.RESTARTED, time_s)
        forgotten = trajectory.num_sampled_tokens
        trajectory.attempt += 1
        trajectory.spans = ()
        trajectory.digest = ""
        trajectory.num_context_tokens = 0
        trajectory.reward = None
        trajectory.resumed = False
        self._complete.pop(trajectory.group, None)
        self._changed(trajectory.group)
        return forgotten

    # Going on

    def extend(self, trajectory: Trajectory, spans: tuple[Span, ...]) -> None:
        """Appends sampled tokens; the first ones may make its group older."""
        is_first = not trajectory.spans
        trajectory.extend(spans)
        if is_first and spans:
            self._groups[trajectory.group].age_is_known = False
            self._fillable.clear()

    def finish(self, trajectory: Trajectory, reward: float, time_s: float) -> None:
        """Marks it finished; its group may be complete by it."""
        trajectory.move(Trigger.SCORED, time_s)
        trajectory.reward = reward
        self._num_done += 1
        self._settle(trajectory.group)

    def mask(self, trajectory: Trajectory, time_s: float) -> None:
        """Ends it as masked; it keeps its slot, so that its group can be complete."""
        self._end(trajectory, Ending.MASKED, time_s)
        self._num_ended += 1
        self._settle(trajectory.group)

    def lose(self, trajectory: Trajectory, ending: Ending, time_s: float) -> None:
        """Ends it without use; ``refill`` must follow, or the end of its group."""
        self._end(trajectory, ending, time_s)
        self._num_ended += 1
        self._complete.pop(trajectory.group, None)

    def drop_spare_members(self, group: GroupId, time_s: float) -> list[Trajectory]:
        """Ends and forgets the members that a complete group does without; returns them."""
        if group not in self._complete:
            return []
        spares = [m for m in self._members(group) if m.is_unfinished]
        for spare in spares:
            self._end(spare, Ending.CANCELLED, time_s)
            self._num_ended += 1
            self._forget(spare)
        return spares

    def is_barren(self, group: GroupId) -> bool:
        """Whether it is complete and no member of it has a token to train: all masked, mostly."""
        return group in self._complete and not any(
            m.state is State.FINISHED and m.spans for m in self._members(group)
        )

    # Being trained

    def oldest(self, group: GroupId) -> Version | None:
        """The oldest token that training the group would train."""
        found = self._groups[group]
        if not found.age_is_known:
            found.oldest = self._find_oldest(group)
            found.age_is_known = True
        return found.oldest

    def _find_oldest(self, group: GroupId) -> Version | None:
        versions = (
            member.oldest
            for member in self._members(group)
            if member.ending is not Ending.MASKED and member.oldest is not None
        )
        return min(versions, default=None)

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

    def end_group(self, group: GroupId, ending: Ending, time_s: float) -> list[Trajectory]:
        """Ends a group, which no lease may name any more; returns the members that this ended."""
        members = [m for m in self._drop(group) if m.state is not State.ENDED]
        for member in members:
            self._end(member, ending, time_s)
        return members

    def members(self, group: GroupId) -> list[Trajectory]:
        """The group's present members, in slot order, ended ones that keep their slot too."""
        return list(self._members(group))

    # Inside

    def _new_member(self, group: GroupId) -> Trajectory:
        trajectory = Trajectory(id=TrajectoryId(self._next_trajectory), group=group)
        self._next_trajectory += 1
        self._trajectories[trajectory.id] = trajectory
        self._groups[group].members.append(trajectory.id)
        return trajectory

    def _forget(self, ended: Trajectory) -> None:
        self._groups[ended.group].members.remove(ended.id)
        del self._trajectories[ended.id]
        self._num_ended -= 1
        self._changed(ended.group)

    def _members(self, group: GroupId) -> Iterable[Trajectory]:
        return (self._trajectories[t] for t in self._groups[group].members)

    def _settle(self, group: GroupId) -> None:
        num_done = sum(
            m.state is State.FINISHED or m.ending is Ending.MASKED for m in self._members(group)
        )
        if num_done >= self._group_size:
            self._complete[group] = None
            self._planned.clear()

    def _changed(self, group: GroupId) -> None:
        """What is known of the group's age, and what followed from it, holds no longer."""
        self._groups[group].age_is_known = False
        self._planned.clear()
        self._fillable.clear()

    def _end(self, trajectory: Trajectory, ending: Ending, time_s: float) -> None:
        self._num_done -= trajectory.state in (State.FINISHED, State.LEASED)
        trajectory.move(Trigger.ENDED, time_s)
        trajectory.ending = ending
        if trajectory.group in self._groups:
            self._changed(trajectory.group)

    def _drop(self, group: GroupId) -> list[Trajectory]:
        members = list(self._members(group))
        for member in members:
            if member.state is State.ENDED:
                self._num_ended -= 1
            del self._trajectories[member.id]
        del self._groups[group]
        self._complete.pop(group, None)
        self._planned.clear()
        self._fillable.clear()
        return members
