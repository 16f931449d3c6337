"""Resident trajectories, by id and by group: how they come in, go on, and leave.

Everything happens to groups as a whole: they are admitted, aged and ended together, and a slot
whose trajectory was lost is refilled. What is trained is ``colocate.core.buffer``'s to say.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from colocate.core.buffer_snapshot import ResidentsRecord
from colocate.core.trajectory import ProtocolError, State, Trajectory, Trigger
from colocate.core.types import Ending, GroupId, Span, TrajectoryId, Version


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


class Residents:
    """Resident trajectories and their groups; the part of the buffer that knows of no leases."""

    def __init__(self, *, group_size: int, redundant_per_group: int) -> None:
        self._group_size = group_size
        self._redundant_per_group = redundant_per_group
        self._trajectories: dict[TrajectoryId, Trajectory] = {}
        self._groups: dict[GroupId, Group] = {}
        self._complete: dict[GroupId, None] = {}
        self._num_ended = 0  # masked or lost, but keeping their slot
        self._num_done = 0  # finished or leased
        self._next_trajectory = 0
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
        trajectory.num_turns = 0
        trajectory.reward = None
        trajectory.resumed = False
        self._complete.pop(trajectory.group, None)
        self._changed(trajectory.group)
        return forgotten

    # Going on

    def take_up(self, trajectory: Trajectory, time_s: float) -> None:
        """An unfinished one of an earlier life: its environment has to be where it was, first."""
        trajectory.move(Trigger.TAKEN_UP, time_s)
        trajectory.request = None
        trajectory.resumed = trajectory.num_sampled_tokens > 0

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

    def end_group(self, group: GroupId, ending: Ending, time_s: float) -> list[Trajectory]:
        """Ends a group, which no lease may name any more; returns the members that this ended."""
        members = [m for m in self._drop(group) if m.state is not State.ENDED]
        for member in members:
            self._end(member, ending, time_s)
        return members

    def give_up(self, group: GroupId) -> list[Trajectory]:
        """Forgets a group of an earlier life; returns its members that had not ended."""
        members = [m for m in self._drop(group) if m.state is not State.ENDED]
        self._num_done -= sum(m.state is State.FINISHED for m in members)
        return members

    def members(self, group: GroupId) -> list[Trajectory]:
        """The group's present members, in slot order, ended ones that keep their slot too."""
        return list(self._members(group))

    def oldest(self, group: GroupId) -> Version | None:
        """The oldest token that training the group would train."""
        found = self._groups[group]
        if not found.age_is_known:
            found.oldest = self._find_oldest(group)
            found.age_is_known = True
        return found.oldest

    # Inside

    def _restore_residents(self, record: ResidentsRecord) -> None:
        self._trajectories = {r.id: r.revive() for r in record.trajectories}
        self._groups = {g.id: Group(id=g.id, members=list(g.members)) for g in record.groups}
        self._complete = dict.fromkeys(record.complete)
        states = Counter(record.state for record in record.trajectories)
        self._num_ended = states[State.ENDED]
        self._num_done = states[State.FINISHED] + states[State.LEASED]
        self._next_trajectory = record.next_trajectory
        self._planned.clear()
        self._fillable.clear()

    def _find_oldest(self, group: GroupId) -> Version | None:
        versions = (
            member.oldest
            for member in self._members(group)
            if member.ending is not Ending.MASKED and member.oldest is not None
        )
        return min(versions, default=None)

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
