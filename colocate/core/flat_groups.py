"""What becomes of complete groups without variance, which teach nothing: given up, or replaced.

Dynamic sampling (DAPO, arXiv:2503.14476, section 3.2) gives them up as soon as they are complete,
so that new groups are admitted in their place. Replay lets them go when their batch is leased, and
puts a group that was trained before in their place.
"""

from __future__ import annotations

from collections.abc import Sequence

from colocate.core.actions import Action, EndTrajectory, Warn
from colocate.core.books import Books
from colocate.core.buffer import Buffer, Lease
from colocate.core.replay_buffer import Replay, ReplayBuffer
from colocate.core.reward_spread import is_flat
from colocate.core.settings import Settings
from colocate.core.trajectory import Trajectory
from colocate.core.types import Ending, GroupId, Version

RESAMPLED = "the rewards of its group are all equal: another group is sampled"

REPLACED = "the rewards of its group are all equal: another group is replayed"


class FlatGroupFilter:
    """Dynamic sampling's. It gives in after a number of groups for one step: so that a run whose
    every group is flat goes on, they are then kept, and trained as they are."""

    def __init__(self, settings: Settings, buffer: Buffer, books: Books) -> None:
        self._settings = settings
        self._buffer = buffer
        self._books = books
        self._version = Version(0)
        self._num_given_up = 0
        self._has_warned = False

    def consider(self, group: GroupId, version: Version, time_s: float) -> list[Action]:
        """Gives a group up if it has just become complete, and is flat.

        Args:
            version: The trainer's: groups are counted for the step that it takes next.
        """
        if not self._settings.dynamic_sampling or not self._buffer.is_complete(group):
            return []
        rewards = self._buffer.rewards_of(group)
        if not is_flat(rewards):
            return []
        if version != self._version:
            self._version, self._num_given_up = version, 0
        if self._num_given_up >= self._settings.max_flat_groups:
            return self._give_in()
        self._num_given_up += 1
        self._books.groups.filter(rewards)
        ended = self._buffer.end_group(group, Ending.FILTERED, time_s)
        return _end(self._books, ended, RESAMPLED)

    def _give_in(self) -> list[Action]:
        if self._has_warned:
            return []
        self._has_warned = True
        message = (
            f"all members of {self._num_given_up} groups had equal rewards before step "
            f"{self._version + 1} could be filled. Such groups are trained as they are from there "
            "on, in each step after algorithm.dynamic_sampling_max_groups = "
            f"{self._settings.max_flat_groups} of them: look at the reward, at the difficulty of "
            "the prompts, and at algorithm.group_size"
        )
        self._books.warnings.append(message)
        return [Warn(message=message)]


def replace_flat_groups(
    buffer: Buffer, replays: ReplayBuffer, books: Books, leases: Sequence[Lease], time_s: float
) -> tuple[list[Lease], list[Action]]:
    """Puts replays in the place of flat groups, as far as there are any; the others stay.

    Returns:
        The leases as they are now, and what ended by it.
    """
    changed: list[Lease] = []
    actions: list[Action] = []
    for lease in leases:
        instead: dict[GroupId, Replay] = {}
        for group in lease.groups:
            rewards = buffer.rewards_of(group)
            if is_flat(rewards):
                taken = {replay.lease.group for replay in instead.values()}
                if replay := replays.lease(lease.version, taken, rewards):
                    instead[group] = replay
        substituted, ended = buffer.substitute(lease, instead, time_s)
        changed.append(substituted)
        actions += _end(books, ended, REPLACED)
    return changed, actions


def _end(books: Books, ended: Sequence[Trajectory], reason: str) -> list[Action]:
    actions: list[Action] = []
    for trajectory in ended:
        books.end(Ending.FILTERED, reason, trajectory.num_sampled_tokens)
        actions.append(
            EndTrajectory(trajectory=trajectory.id, ending=Ending.FILTERED, reason=reason)
        )
    return actions
