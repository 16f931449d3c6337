"""The independent check of replays, from the journal alone; see ``colocate.core.audit``.

It keeps what a replay may be of: the contents that a trained group left, with the digests and the
versions that they were trained with.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from colocate.core import actions as act
from colocate.core.audit_resumption import tokens_by_version
from colocate.core.buffer_snapshot import ReplaysRecord
from colocate.core.settings import Settings
from colocate.core.types import BatchId, GroupId, ReplayId, ReplayLease, TrajectoryId

Finding = tuple[str, str]
"""An invariant, and what breaks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A trajectory as its own batch trained it. ``versions`` are its tokens by version."""

    group: GroupId
    origin: BatchId
    reward: float
    digest: str
    versions: Mapping[int, int]

    @property
    def num_tokens(self) -> int:
        return sum(self.versions.values())


@dataclass(slots=True)
class _Group:
    members: dict[TrajectoryId, Trained] = field(default_factory=dict)
    num_uses: int = 0
    is_forgotten: bool = False


class ReplayAuditor:
    """``trained`` and ``lags`` count what was replayed, in trajectories and in tokens."""

    def __init__(self) -> None:
        self.replayed = 0
        self.lags: Counter[int] = Counter()
        self._settings: Settings | None = None
        self._groups: dict[GroupId, _Group] = {}
        self._num_kept = 0
        self._leased: set[ReplayId] = set()

    def start(self, settings: Settings) -> None:
        self._settings = settings

    def keep(self, trajectory: TrajectoryId, trained: Trained) -> None:
        """A trajectory ended as trained, and its content stays."""
        group = self._groups.setdefault(trained.group, _Group())
        group.members[trajectory] = trained

    def restore(self, record: ReplaysRecord) -> None:
        """What the checkpoint held; a use that was out when it was written never came to be."""
        for kept in record.kept:
            members = {
                member.id: Trained(
                    group=kept.group,
                    origin=kept.origin,
                    reward=member.reward or 0.0,
                    digest=member.digest,
                    versions=tokens_by_version(member),
                )
                for member in kept.members
            }
            self._groups[kept.group] = _Group(members, num_uses=kept.num_uses - kept.num_out)
        self._num_kept = len(record.kept)

    def check_kept(self) -> Iterator[Finding]:
        """After each line: what is kept is bounded, and worth it."""
        assert self._settings is not None
        settings = self._settings
        kept = [name for name, group in self._groups.items() if not group.is_forgotten]
        if len(kept) > settings.replay_groups:
            yield "bound", f"{len(kept)} groups are kept for replay"
        for name in kept[self._num_kept :]:
            rewards = [member.reward for member in self._groups[name].members.values()]
            mean, deviation = statistics.fmean(rewards), statistics.pstdev(rewards)
            if mean <= settings.replay_min_mean or deviation <= settings.replay_min_std:
                yield "groups", f"group {name} is kept with rewards of {mean} +- {deviation}"
        self._num_kept = len(kept)

    def forget(self, action: act.ForgetContent) -> Iterator[Finding]:
        group = self._groups.get(action.group)
        if group is None or group.is_forgotten or {*group.members} != {*action.trajectories}:
            yield "conservation", f"group {action.group} was forgotten twice, or never kept whole"
            return
        group.is_forgotten = True
        self._num_kept -= 1

    def lease(self, train: act.Train, own: set[GroupId], version: int) -> Iterator[Finding]:
        """Each replay is a lease of its own, of a group that is there, within its own bound."""
        groups = Counter([*own, *(replay.group for replay in train.replays)])
        for name, count in groups.items():
            if count > 1:
                yield "groups", f"batch {train.batch} has group {name} {count} times"
        for replay in train.replays:
            if replay.replay in self._leased:
                yield "exactly once", f"replay {replay.replay} was leased twice"
            self._leased.add(replay.replay)
            yield from self._check_use(replay, version)

    def _check_use(self, replay: ReplayLease, version: int) -> Iterator[Finding]:
        assert self._settings is not None
        group = self._groups.get(replay.group)
        if group is None or group.is_forgotten or {*group.members} != {*replay.trajectories}:
            yield "fidelity", f"replay {replay.replay} is of content that is not kept"
            return
        group.num_uses += 1
        if group.num_uses > self._settings.replay_max_uses:
            yield "exactly once", f"group {replay.group} is replayed {group.num_uses} times"
        if {member.origin for member in group.members.values()} != {replay.origin}:
            yield "exactly once", f"replay {replay.replay} names batch {replay.origin}"
        ages = [version - v for member in group.members.values() for v in member.versions]
        if not 0 < max(ages, default=0) <= self._settings.replay_max_staleness:
            yield "bound", f"replay {replay.replay} has tokens {max(ages, default=0)} behind"

    def members(self, train: act.Train) -> list[Trained]:
        """What the batch replays, in the order of the lease; what is not known is left out."""
        members = [self._groups[r.group].members for r in train.replays if r.group in self._groups]
        return [trained for group in members for trained in group.values()]

    def acknowledge(self, train: act.Train) -> None:
        self.replayed += sum(len(replay.trajectories) for replay in train.replays)
        for member in self.members(train):
            for version, count in member.versions.items():
                self.lags[train.version - version] += count

    def summary(self) -> dict[str, float | int | None]:
        num_tokens = self.lags.total()
        total = sum(lag * count for lag, count in self.lags.items())
        return {
            "max_lag": max(self.lags, default=None),
            "mean_lag": total / num_tokens if num_tokens else None,
        }
