"""What a run takes up of the life before it: the buffer of the checkpoint, as far as it still fits.

        finished, leased --> finished again: trained in their turn, once
        unfinished       --> their environments are replayed, then they go on from their tokens
        too old by now   --> end, or begin again, as at a swap (``buffer.on_stale``)
        does not fit     --> given up: the prompt is drawn again

A buffer does not fit where the run's configuration has changed: groups of another size, or fewer
of them resident at a time.
"""

from __future__ import annotations

from colocate.core import crossing
from colocate.core.actions import Action, GiveUpGroup, ResumeTrajectory, StartTrajectory
from colocate.core.books import Books
from colocate.core.buffer import Buffer
from colocate.core.buffer_snapshot import BufferSnapshot
from colocate.core.replay_buffer import ReplayBuffer
from colocate.core.settings import Settings
from colocate.core.types import GroupId, Version


def take_up(
    snapshot: BufferSnapshot,
    buffer: Buffer,
    replays: ReplayBuffer,
    books: Books,
    settings: Settings,
    version: Version,
    time_s: float,
) -> tuple[list[Action], list[GroupId]]:
    """Restores both buffers, which must be new.

    Args:
        version: The trainer's, and so where the next batch begins.

    Returns:
        What is to be done, and the groups that were given up: their prompts are to be drawn again.
    """
    replays.restore(snapshot.replays)
    buffer.restore(snapshot.residents, replays)
    unused = [replay for lease in buffer.return_leases(time_s) for replay in lease.replays]
    books.resumed.find(buffer)
    actions: list[Action] = [*replays.take_up(unused, version)]
    given_up = _groups_without_a_place(snapshot, buffer, settings)
    for group, reason in given_up.items():
        actions.append(_give_up(buffer, books, group, reason))
    books.admitted += len(buffer)
    for trajectory in buffer:
        if trajectory.is_unfinished:
            buffer.take_up(trajectory, time_s)
    actions += crossing.retire(buffer, books, settings, version, time_s)
    begun_again = {a.trajectory for a in actions if isinstance(a, StartTrajectory)}
    actions += [
        ResumeTrajectory(trajectory=t.id, group=t.group, attempt=t.attempt)
        for t in buffer
        if t.is_unfinished and t.id not in begun_again
    ]
    return actions, [*given_up]


def _groups_without_a_place(
    snapshot: BufferSnapshot, buffer: Buffer, settings: Settings
) -> dict[GroupId, str]:
    """With the reason; complete groups go last, and of the others those admitted last go first."""
    size, most = settings.group_size, settings.group_size + settings.redundant_per_group
    if snapshot.residents.group_size != size:
        reason = f"its group has {snapshot.residents.group_size} members, not {size}"
        return dict.fromkeys(buffer.groups, reason)
    given_up: dict[GroupId, str] = {}
    room = settings.max_resident_groups + settings.redundant_groups
    for group in sorted(buffer.groups, key=lambda group: not buffer.is_complete(group)):
        members = buffer.members(group)
        if len(members) > most:
            given_up[group] = f"its group has more spares than {settings.redundant_per_group}"
        elif not room:
            given_up[group] = "fewer groups may be resident than before"
        else:
            room -= 1
    return given_up


def _give_up(buffer: Buffer, books: Books, group: GroupId, reason: str) -> GiveUpGroup:
    given_up = buffer.give_up(group)
    for trajectory in given_up:
        books.resumed.give_up(reason, trajectory.num_sampled_tokens)
        books.tokens["discarded"] += trajectory.num_sampled_tokens
    return GiveUpGroup(group=group, trajectories=tuple(t.id for t in given_up), reason=reason)
