"""What a swap policy sees and says; and what a swap would make too old to be trained."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from colocate.core.buffer import Buffer
from colocate.core.types import Ending, TrajectoryId, Version


@dataclass(frozen=True, slots=True)
class Loss:
    """Tokens that a swap would make too stale to be trained.

    Attributes:
        num_tokens: Of all groups concerned.
        num_unfinished: Members of these groups that are still generated, or in environments.
        groups: For each group that the swap would train if it were complete, its tokens and its
            unfinished members. The others are too old for any batch that has room for them.
    """

    num_tokens: int = 0
    num_unfinished: int = 0
    groups: tuple[tuple[int, tuple[TrajectoryId, ...]], ...] = ()


NOTHING = Loss()


@dataclass(frozen=True, slots=True)
class Groups:
    """Who blocks whom: a group can be trained when its last member is finished.

    Attributes:
        num_complete: Groups that could be leased.
        unfinished: For each other group, its members that are not finished.
    """

    num_complete: int = 0
    unfinished: tuple[tuple[TrajectoryId, ...], ...] = ()


NO_GROUPS = Groups()


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """What a policy may look at. Times in seconds on the run's clock.

    Attributes:
        num_ready_batches: Full batches that could be leased now, within the bound.
        num_unfinished: Trajectories that are still being generated, or in their environments; 0
            where all that are left belong to spare groups.
        num_steps_left: Training steps until the run is done.
        max_batches: The most that one training phase may take: the bound allows S + 1.
        suffices: What is resident suffices for all steps that are left, so that a swap would let
            nobody in.
        num_fillable_batches: How many there will be once every resident trajectory is finished.
        loss_of: What a swap that trains so many batches would make too stale.
        groups: Who blocks whom.
    """

    time_s: float
    rollout_started_s: float
    num_ready_batches: int
    num_unfinished: int
    num_steps_left: int
    max_batches: int
    num_fillable_batches: Callable[[], int]
    suffices: bool = False
    loss_of: Callable[[int], Loss] = lambda _: NOTHING
    groups: Callable[[], Groups] = lambda: NO_GROUPS

    def wanted(self, num_batches: int) -> int:
        """How many of so many batches there can be: to wait for more would be without end."""
        most = min(num_batches, self.num_steps_left)
        return min(most, max(1, self.num_fillable_batches())) if most > 1 else most


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The numbers that a decision was taken on; None where unknown, or of no use to the policy.

    Attributes:
        reason: In words.
        current_rate: Tokens a second that the engine decodes with those who run now.
        cycle_rate: Useful tokens a second of the average cycle, its swap included.
        swap_cost_s: Predicted seconds of the swap without training, re-prefill included.
        swap_cost_error_s: One standard error of it.
        reprefill_s: The part of it that reads parked contexts again.
        lost_tokens: That the swap makes too stale.
        place_tokens: What one place for a new trajectory is worth in the cycle to come.
        horizon_s, horizon_tokens: The horizon that spoke most for staying, and what it would bring.
    """

    reason: str
    current_rate: float | None = None
    cycle_rate: float | None = None
    swap_cost_s: float | None = None
    swap_cost_error_s: float | None = None
    reprefill_s: float | None = None
    lost_tokens: int | None = None
    place_tokens: float | None = None
    horizon_s: float | None = None
    horizon_tokens: float | None = None

    def with_horizon(self, horizon_s: float, num_tokens: float) -> Why:
        return replace(
            self,
            horizon_s=float(f"{horizon_s:.6g}"),
            horizon_tokens=float(f"{num_tokens:.6g}"),
        )


@dataclass(frozen=True, slots=True)
class Swap:
    """Swap now and train this many batches."""

    num_batches: int
    why: Why


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """Go on generating; ask again when something changes, or at ``until_s``.

    ``why`` is journaled where it is given: where the question was a new one.
    """

    until_s: float | None = None
    why: Why | None = None


def loss_of_swap(buffer: Buffer, version: Version, num_batches: int) -> Loss:
    """What becomes too stale where a phase that begins at ``version`` trains ``num_batches``."""
    trained = {group for batch in buffer.plan(version, num_batches) for group in batch}
    lost = [g for g in buffer.stale_groups(Version(version + num_batches)) if g not in trained]
    tokens, unfinished = {}, {}
    for group in lost:
        members = buffer.members(group)
        tokens[group] = sum(m.num_sampled_tokens for m in members if m.ending is not Ending.MASKED)
        unfinished[group] = tuple(m.id for m in members if m.is_unfinished)
    incomplete = [group for group in lost if unfinished[group]]
    rescuable = buffer.plan_with(incomplete, version, num_batches)
    return Loss(
        num_tokens=sum(tokens.values()),
        num_unfinished=sum(len(members) for members in unfinished.values()),
        groups=tuple((tokens[group], unfinished[group]) for group in rescuable),
    )


def groups_of(buffer: Buffer) -> Groups:
    unfinished = []
    num_complete = 0
    for group in buffer.groups:
        open_members = tuple(m.id for m in buffer.members(group) if m.is_unfinished)
        if open_members:
            unfinished.append(open_members)
        else:
            num_complete += 1
    return Groups(num_complete, tuple(unfinished))
