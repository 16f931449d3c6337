"""Redundancy: more environments than needed; the first to finish win, the rest are cancelled.

Two kinds of spares, both there so that the slowest environment does not hold up a swap:

- spare *members*: a group is admitted with ``redundant_per_group`` more trajectories than it has
  slots. The first ``group_size`` that are finished or masked hold the slots; at that moment the
  group is complete, and the others are cancelled. A masked one holds a slot here as elsewhere:
  were a spare to stand in for it, a group would wait for its slow members wherever a quick one
  is invalid, which is what spares are there to avoid. A lost one is not refilled while spares are
  left to take its slot.
- spare *groups*: ``redundant_groups`` more than the bound admits. When batches are leased, as many
  of the unfinished groups are cancelled, those furthest from complete first; with
  ``spare_groups = "carry"`` they stay for the next swap, as long as the bound allows.

Who finishes first is more often short than long. That bias is the price of redundancy, and the
books report it.
"""

from __future__ import annotations

from colocate.core.actions import Action, EndTrajectory
from colocate.core.admission import RequestQueue
from colocate.core.books import Books
from colocate.core.buffer import Buffer
from colocate.core.settings import Settings
from colocate.core.trajectory import Trajectory
from colocate.core.types import Ending, GroupId

REASON = "spare no longer needed"


def cancel_spare_members(
    buffer: Buffer, requests: RequestQueue, books: Books, group: GroupId, time_s: float
) -> list[Action]:
    """Ends what a complete group no longer needs."""
    return [
        _cancelled(member, requests, books) for member in buffer.drop_spare_members(group, time_s)
    ]


def cancel_spare_groups(
    buffer: Buffer,
    requests: RequestQueue,
    books: Books,
    settings: Settings,
    *,
    num_steps_left: int,
    time_s: float,
) -> list[Action]:
    """Ends unfinished groups beyond those that are admitted without redundancy.

    Groups that have sampled nothing yet cost nothing, carry nothing, and stay.

    Args:
        num_steps_left: Steps that are still to be leased for.
    """
    carries = settings.spare_groups == "carry" and num_steps_left > 0
    if carries or not settings.redundant_groups:
        return []
    needed = min(
        settings.max_resident_groups - buffer.num_leased_groups,
        settings.groups_per_step * num_steps_left,
    )
    num_spare = buffer.num_groups - buffer.num_leased_groups - max(0, needed)
    candidates = [
        group
        for group in buffer.incomplete_groups
        if any(member.spans for member in buffer.members(group))
    ]
    # Stable: of equals the one that was admitted last goes.
    candidates.reverse()
    candidates.sort(key=lambda group: sum(not m.is_unfinished for m in buffer.members(group)))
    return [
        _cancelled(member, requests, books)
        for group in candidates[: max(0, min(num_spare, settings.redundant_groups))]
        for member in buffer.end_group(group, Ending.CANCELLED, time_s)
    ]


def _cancelled(member: Trajectory, requests: RequestQueue, books: Books) -> EndTrajectory:
    """The request that it has at the engine is given up: nobody waits for its answer."""
    if member.request is not None:
        requests.give_up(member.request)
    books.cancel_spare(REASON, member.num_sampled_tokens)
    return EndTrajectory(trajectory=member.id, ending=Ending.CANCELLED, reason=REASON)
