"""THE definition of staleness, and the arithmetic that follows from it.

A *version* counts training steps. The lag of a token is the trainer's version when the step on
its batch begins, minus the version of the weights that sampled the token. Every trained token
must have ``lag <= max_staleness``. A trajectory is as old as its oldest trained token, a group as
old as its oldest trajectory.

Nothing else in the project compares versions: who needs to know asks here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from colocate.core.types import Span, Version


def lag(trained_at: Version, sampled_at: Version) -> int:
    """Training steps between the weights that sampled a token and the step that trains it.

    Raises:
        ValueError: where the token claims weights that did not exist yet.
    """
    if sampled_at > trained_at:
        raise ValueError(
            f"a token of version {sampled_at} cannot be trained by a step that begins at "
            f"version {trained_at}"
        )
    return trained_at - sampled_at


def oldest(spans: Iterable[Span]) -> Version | None:
    """The version of the oldest token, or None where nothing was sampled yet."""
    return min((span.version for span in spans), default=None)


def is_within_bound(trained_at: Version, sampled_at: Version | None, max_staleness: int) -> bool:
    """Whether tokens of this age may be trained by a step that begins at ``trained_at``."""
    return sampled_at is None or lag(trained_at, sampled_at) <= max_staleness


def latest_step(sampled_at: Version, max_staleness: int) -> Version:
    """The last version at which a step may still begin that trains tokens of this age."""
    return Version(sampled_at + max_staleness)


def max_swap_interval(max_staleness: int) -> int:
    """The j-th batch of a phase begins j versions later, so at most S + 1 batches fit."""
    return max_staleness + 1


def max_resident(max_staleness: int, groups_per_step: int) -> int:
    """Groups that may be admitted and not ended: what S + 1 steps can consume.

    They are counted, and not their trajectories, since steps consume groups: one of which a
    trajectory was masked takes the place of a whole one.
    """
    return (max_staleness + 1) * groups_per_step


def max_requests(max_staleness: int, trajectories_per_step: int) -> int:
    """Requests that may be at the engine: ``max(1, S) x n``.

    The textbook's ``S x B x G x P`` with ``n = B x G x P x mini-batches`` trajectories a step;
    more would be stale before the trainer came to them. At ``S = 0`` one batch is still needed.
    """
    return max(1, max_staleness) * trajectories_per_step


def assign_batches(
    oldest_versions: Sequence[Version | None],
    *,
    version: Version,
    max_staleness: int,
    groups_per_batch: int,
    max_batches: int,
) -> list[list[int]]:
    """Which groups train in which step of a training phase that begins at ``version``.

    Earliest deadline first: batch ``j`` begins at ``version + j``, so a group may be in batch
    ``j`` only up to its deadline ``latest_step(oldest) - version``. Taking groups oldest first is
    optimal for equal batches with deadlines (Jackson's rule): if any assignment fills ``m``
    batches, this one does.

    Args:
        oldest_versions: One per complete group, in the order in which they completed; ties of
            age keep that order. None marks a group without a trained token.

    Returns:
        Full batches only, each a list of positions in ``oldest_versions``.
    """
    ages = [version if age is None else age for age in oldest_versions]
    order = sorted(range(len(ages)), key=ages.__getitem__)
    batches: list[list[int]] = []
    current: list[int] = []
    for position in order:
        if len(batches) == max_batches:
            break
        begins_at = Version(version + len(batches))
        if is_within_bound(begins_at, oldest_versions[position], max_staleness):
            current.append(position)
            if len(current) == groups_per_batch:
                batches.append(current)
                current = []
    return batches
