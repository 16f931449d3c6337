"""What a swap means for the trajectories that are not trained in it."""

from __future__ import annotations

from colocate.core.actions import Action, EndTrajectory, StartTrajectory
from colocate.core.books import Books
from colocate.core.buffer import Buffer
from colocate.core.settings import Settings
from colocate.core.staleness import is_within_bound
from colocate.core.types import Ending, GroupId, Version


def retire(
    buffer: Buffer, books: Books, settings: Settings, next_version: Version, time_s: float
) -> list[Action]:
    """Ends, or begins again, what could not be within the bound when its turn comes.

    Args:
        next_version: Where the next training phase begins, at the earliest.
    """
    actions: list[Action] = []
    for group in buffer.stale_groups(next_version):
        if settings.on_stale == "expire":
            actions += _expire(buffer, books, settings, group, time_s)
        else:
            actions += _restart(buffer, books, settings, group, next_version, time_s)
    return actions


def count_carried(buffer: Buffer, books: Books) -> None:
    """Enters the partials that cross this swap; their next request re-reads its context."""
    for trajectory in buffer:
        if trajectory.is_unfinished and trajectory.num_sampled_tokens:
            books.carried += trajectory.crossings == 0
            trajectory.crossings += 1
            trajectory.resumed = True
            books.tokens["carried"] += trajectory.num_sampled_tokens
            books.max_crossings = max(books.max_crossings, trajectory.crossings)


def _expire(
    buffer: Buffer, books: Books, settings: Settings, group: GroupId, time_s: float
) -> list[Action]:
    reason = f"older than {settings.max_staleness} at the next training phase"
    actions: list[Action] = []
    for trajectory in buffer.end_group(group, Ending.EXPIRED, time_s):
        books.end(Ending.EXPIRED, reason, trajectory.num_sampled_tokens)
        actions.append(
            EndTrajectory(trajectory=trajectory.id, ending=Ending.EXPIRED, reason=reason)
        )
    return actions


def _restart(
    buffer: Buffer,
    books: Books,
    settings: Settings,
    group: GroupId,
    next_version: Version,
    time_s: float,
) -> list[Action]:
    """Only members that are too old themselves; the others keep what they have."""
    actions: list[Action] = []
    for member in buffer.members(group):
        if member.ending or is_within_bound(next_version, member.oldest, settings.max_staleness):
            continue
        books.tokens["discarded"] += buffer.restart(member, time_s)
        books.restarts += 1
        actions.append(StartTrajectory(trajectory=member.id, group=group, attempt=member.attempt))
    return actions
