"""The cap on the share of trajectories that environments may spoil: when a run must stop for it."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable

from colocate.core.types import TrajectoryId

MAX_SURPLUS = 16
"""Losses beyond the cap's share that a stretch of trajectories may have by chance."""


class LossCap:
    """Stops a run that loses a larger share of its trajectories than ``max_fraction``.

    Lost are those that a fault ended (filtered or failed) and those that their environment called
    invalid: neither has anything to train. Those that were truncated, and groups without variance,
    are the policy's doing and do not count.

    The rule: in no stretch of trajectories, consecutive in the order of *admission*, may the lost
    be more than ``max_fraction`` of the stretch by ``MAX_SURPLUS`` or more. That is Page's CUSUM
    test (Biometrika 41, 1954) with ``max_fraction`` for its reference value, on a sequence in
    which a trajectory that is not lost, or not yet, counts as kept. Whatever stretch it finds has
    a larger share of losses than allowed, and the surplus is what makes that no accident.

    Two choices of order make it sound. Losses come sooner than successes (an environment that
    cannot be reset fails at once, a long episode ends late), so that the latest *outcomes* of a
    healthy run can all be losses, at its beginning most of all; the order of admission has no such
    bias. And a trajectory without an outcome can only weaken the evidence, never make it.

    For independent faults and ``max_fraction = 0.5``, exactly (a reflected random walk of half
    steps, absorbed after 32):

    - false alarm within 10,000 trajectories: 4e-9 at a fault rate of 30%, 0.15% at 40%;
    - trajectories until a run is stopped, on average: 32 where all are lost, 150 at 60%.

    A rate just below the cap is told from one just above it only by more trajectories than most
    runs have: at 45% one run in four is stopped within 10,000. Of a cap of 0 the first loss is
    beyond; a cap of 1 never stops a run.
    """

    def __init__(self, max_fraction: float) -> None:
        self._max_fraction = max_fraction
        self._max_surplus = MAX_SURPLUS if max_fraction > 0 else 1
        self._lost: list[TrajectoryId] = []
        self._reasons: dict[TrajectoryId, str] = {}

    def lose(self, trajectory: TrajectoryId, reason: str) -> str | None:
        """Takes in a loss; returns why the run must stop, or None."""
        place = bisect_left(self._lost, trajectory)
        # Only stretches that hold this loss have got worse by it.
        earlier = (self._lost[i] for i in range(place - 1, -1, -1))
        later = (self._lost[i] for i in range(place, len(self._lost)))
        before, first = self._best_extension(trajectory, earlier)
        after, last = self._best_extension(trajectory, later)
        self._lost.insert(place, trajectory)
        self._reasons[trajectory] = reason
        if before + (1 - self._max_fraction) + after < self._max_surplus:
            return None
        return self._explain(first, last)

    def _best_extension(
        self, start: TrajectoryId, lost: Iterable[TrajectoryId]
    ) -> tuple[float, TrajectoryId]:
        """The largest surplus of a stretch that goes on from ``start``, and the loss it ends at."""
        surplus = best = 0.0
        end = previous = start
        for trajectory in lost:
            surplus += 1 - self._max_fraction * abs(trajectory - previous)
            previous = trajectory
            if surplus > best:
                best, end = surplus, trajectory
            elif surplus < best - self._max_surplus:
                break  # beyond this no stretch has a surplus that could make up for it
        return best, end

    def _explain(self, first: TrajectoryId, last: TrajectoryId) -> str:
        inside = Counter(self._reasons[t] for t in self._lost if first <= t <= last)
        reason, count = inside.most_common(1)[0]
        return (
            f"{inside.total()} of {last - first + 1} consecutive trajectories were lost to faults "
            f"or called invalid, more than buffer.max_filtered_fraction = {self._max_fraction} "
            f"allows; most often ({count} times): {reason}"
        )
