"""Groups that were trained and may be trained once more, in place of groups without variance.

    trained --spread and mean above thresholds--> [kept] --leased--> [out] --acknowledged--> [kept]
                                                     |
              full, too old, or used up: forgotten <-+

First in, first out; groups keep the versions that sampled their tokens. Each use is a lease of its
own and names the batch that the group was first trained in. A group that is out is neither given up
nor forgotten before it is back. After section 18.4.8 of the textbook (experience replay for GRPO).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from colocate.core import staleness
from colocate.core.actions import Action, ForgetContent
from colocate.core.buffer_snapshot import (
    KeptRecord,
    ReplaysRecord,
    ReplayUse,
    TrajectoryRecord,
)
from colocate.core.reward_spread import has_spread
from colocate.core.settings import Settings
from colocate.core.trajectory import ProtocolError, Trajectory
from colocate.core.types import BatchId, GroupId, ReplayId, ReplayLease, Span, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """A replay on its way through the trainer.

    ``replaced`` are the rewards of the group whose place it takes.
    """

    lease: ReplayLease
    members: tuple[Trajectory, ...]
    replaced: tuple[float, ...]

    @property
    def oldest(self) -> Version | None:
        return staleness.oldest(self.spans)

    @property
    def spans(self) -> list[Span]:
        return [span for member in self.members for span in member.spans]


@dataclass(slots=True, kw_only=True)
class _Kept:
    """A group that was trained. ``members`` are those that bore its gradient."""

    group: GroupId
    origin: BatchId
    members: tuple[Trajectory, ...]
    oldest: Version
    num_uses: int = 0
    num_out: int = 0

    @classmethod
    def revive(cls, record: KeptRecord) -> _Kept:
        oldest = staleness.oldest(span for member in record.members for span in member.spans)
        assert oldest is not None, "a group without tokens is never kept"
        return cls(
            group=record.group,
            origin=record.origin,
            members=tuple(member.revive() for member in record.members),
            oldest=oldest,
            num_uses=record.num_uses,
            num_out=record.num_out,
        )


def _forget(kept: _Kept, reason: str) -> ForgetContent:
    return ForgetContent(
        group=kept.group, trajectories=tuple(m.id for m in kept.members), reason=reason
    )


class ReplayBuffer:
    """At most ``replay_groups`` groups; none where that is 0."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kept: dict[GroupId, _Kept] = {}
        self._next_replay = 0

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, group: GroupId) -> bool:
        return group in self._kept

    def lease(
        self, version: Version, taken: Collection[GroupId], replaced: Sequence[float]
    ) -> Replay | None:
        """A use in a batch that begins at ``version``, or None where no group is suitable.

        The group that was used least, of those the freshest, of those the one kept last.

        Args:
            taken: Groups that the batch replays already.
            replaced: Rewards of the group whose place it takes.
        """
        candidates = [
            kept
            for kept in reversed(self._kept.values())
            if kept.group not in taken
            and kept.num_uses < self._settings.replay_max_uses
            and self._is_within_bound(version, kept.oldest)
        ]
        if not candidates:
            return None
        chosen = min(candidates, key=lambda kept: (kept.num_uses, -kept.oldest))
        chosen.num_uses += 1
        chosen.num_out += 1
        lease = ReplayLease(
            replay=ReplayId(self._next_replay),
            origin=chosen.origin,
            group=chosen.group,
            trajectories=tuple(member.id for member in chosen.members),
        )
        self._next_replay += 1
        return Replay(lease=lease, members=chosen.members, replaced=tuple(replaced))

    def check_bound(self, version: Version, replays: Collection[Replay]) -> None:
        """The hard check, where the thing is consumed.

        Raises:
            ProtocolError: where a replayed token is older than the bound of replays allows.
        """
        for replay in replays:
            if not self._is_within_bound(version, replay.oldest):
                raise ProtocolError(
                    f"replay {replay.lease.replay} of group {replay.lease.group} has tokens of "
                    f"version {replay.oldest}, more than {self._settings.replay_max_staleness} "
                    f"behind version {version}"
                )

    def acknowledge(
        self,
        batch: BatchId,
        replays: Collection[Replay],
        trained: Sequence[Trajectory],
        next_version: Version,
    ) -> list[Action]:
        """Takes replays back, keeps what the batch trained afresh, and gives up what has to go.

        Args:
            trained: The batch's own trajectories; those of a group that is kept are in it after.
            next_version: Where a batch that is leased from now on begins, at the earliest.
        """
        for replay in replays:
            self._kept[replay.lease.group].num_out -= 1
        if not self._settings.replay_groups:
            return []
        known = set(self._kept)
        for group in dict.fromkeys(member.group for member in trained):
            self._consider(batch, tuple(m for m in trained if m.group == group))
        return [
            _forget(kept, reason)
            for kept, reason in self._trim(next_version)
            if kept.group in known
        ]

    # Across a restart

    def snapshot(self) -> ReplaysRecord:
        """All of it but the content, as ``restore`` takes it."""
        kept = (
            KeptRecord(
                group=kept.group,
                origin=kept.origin,
                members=tuple(TrajectoryRecord.of(member) for member in kept.members),
                num_uses=kept.num_uses,
                num_out=kept.num_out,
            )
            for kept in self._kept.values()
        )
        return ReplaysRecord(kept=tuple(kept), next_replay=self._next_replay)

    def restore(self, record: ReplaysRecord) -> None:
        """Becomes what was recorded; what it held before is forgotten."""
        self._kept = {kept.group: _Kept.revive(kept) for kept in record.kept}
        self._next_replay = record.next_replay

    def revive(self, use: ReplayUse) -> Replay:
        members = self._kept[use.lease.group].members
        return Replay(lease=use.lease, members=members, replaced=use.replaced)

    def take_up(self, unused: Collection[Replay], next_version: Version) -> list[Action]:
        """After a restart: uses that never came to be are taken back, and what has to go goes."""
        for replay in unused:
            kept = self._kept[replay.lease.group]
            kept.num_uses -= 1
            kept.num_out -= 1
        unfit = [kept for kept in self._kept.values() if not self._is_worth(kept.members)]
        for kept in unfit:
            del self._kept[kept.group]
        gone = [(kept, "its rewards are no longer spread enough") for kept in unfit]
        return [_forget(kept, reason) for kept, reason in (*gone, *self._trim(next_version))]

    # Inside

    def _is_worth(self, members: Sequence[Trajectory]) -> bool:
        rewards = [member.reward for member in members if member.reward is not None]
        settings = self._settings
        return has_spread(
            rewards, min_std=settings.replay_min_std, min_mean=settings.replay_min_mean
        )

    def _is_within_bound(self, version: Version, oldest: Version | None) -> bool:
        return staleness.is_within_bound(version, oldest, self._settings.replay_max_staleness)

    def _consider(self, batch: BatchId, members: tuple[Trajectory, ...]) -> None:
        oldest = staleness.oldest(span for member in members for span in member.spans)
        if oldest is not None and self._is_worth(members):
            group = members[0].group
            self._kept[group] = _Kept(group=group, origin=batch, members=members, oldest=oldest)

    def _trim(self, next_version: Version) -> list[tuple[_Kept, str]]:
        """Gives up what can be of no use, then the oldest beyond the capacity; not what is out."""
        settings = self._settings
        gone: list[tuple[_Kept, str]] = []
        for kept in [k for k in self._kept.values() if not k.num_out]:
            if kept.num_uses >= settings.replay_max_uses:
                gone.append((kept, f"used {settings.replay_max_uses} times"))
            elif not self._is_within_bound(next_version, kept.oldest):
                gone.append((kept, f"older than {settings.replay_max_staleness}"))
        for kept, _ in gone:
            del self._kept[kept.group]
        for kept in [k for k in self._kept.values() if not k.num_out]:
            if len(self._kept) <= settings.replay_groups:
                break
            del self._kept[kept.group]
            gone.append((kept, "the oldest of more than fit"))
        return gone
