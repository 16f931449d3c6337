"""Who may come in: prompts into the buffer, and requests into the engine."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable

from colocate.core.buffer import Buffer
from colocate.core.events import PromptCursor
from colocate.core.trajectory import State, Trajectory
from colocate.core.types import GroupId, TrajectoryId, Version

_YOUNGEST = Version(2**62)


class PromptStream:
    """Positions of the prompt stream, each drawn once; what was given up is drawn again first."""

    def __init__(self, cursor: PromptCursor) -> None:
        self._next = cursor.next_position
        self._again = deque(sorted(cursor.pending))

    def draw(self) -> GroupId:
        if self._again:
            return self._again.popleft()
        position = self._next
        self._next = GroupId(position + 1)
        return position

    def draw_again(self, positions: Iterable[GroupId]) -> None:
        """Before any others, in the order of the stream."""
        self._again = deque(sorted({*self._again, *positions}))

    def go_back(self, cursor: PromptCursor) -> None:
        """Stands where it stood: what was drawn since is drawn again."""
        self._next = cursor.next_position
        self._again = deque(sorted(cursor.pending))

    @property
    def cursor(self) -> PromptCursor:
        """What a checkpoint must know, beside the groups that are resident."""
        return PromptCursor(next_position=self._next, pending=tuple(self._again))


class RequestQueue:
    """Trajectories that wait at the gate, and the requests that have passed it.

    Oldest version first, then turns that a park cut, then the order of admission: what would be
    too stale first is finished first.
    """

    def __init__(self, max_requests: int) -> None:
        self._max_requests = max_requests
        self._waiting: list[tuple[Version, bool, TrajectoryId, int]] = []
        self._inflight: dict[str, TrajectoryId] = {}
        self._lent: set[str] = set()

    @property
    def num_inflight(self) -> int:
        """Those of evaluations included: the engine's limit is on all of them together."""
        return len(self._inflight) + len(self._lent)

    @property
    def has_room(self) -> bool:
        return self.num_inflight < self._max_requests

    def lend(self, request: str) -> None:
        """Counts a request that is no trajectory's."""
        self._lent.add(request)

    def take_back(self, request: str) -> None:
        """It has returned, or its answer is no longer wanted."""
        self._lent.discard(request)

    def is_inflight(self, request: str, trajectory: TrajectoryId) -> bool:
        return self._inflight.get(request) == trajectory

    def wait(self, trajectory: Trajectory) -> None:
        """Queues a trajectory.

        One that has sampled nothing stays as young as the engine's weights, however long it waits,
        and goes last: with the version of the day it was queued it would overtake partials that
        the next swap makes older.
        """
        oldest = trajectory.oldest
        version = _YOUNGEST if oldest is None else oldest
        entry = (version, not trajectory.resumed, trajectory.id, trajectory.attempt)
        heapq.heappush(self._waiting, entry)

    def next(self, buffer: Buffer) -> Trajectory | None:
        """The trajectory whose turn it is, or None where nothing waits or the engine is full."""
        while self._waiting and self.has_room:
            _, _, identifier, attempt = heapq.heappop(self._waiting)
            trajectory = buffer.get(identifier)
            # It may have ended or begun again since it was queued.
            if trajectory and trajectory.state is State.QUEUED and trajectory.attempt == attempt:
                return trajectory
        return None

    def submit(self, trajectory: Trajectory) -> str:
        """Names and counts the trajectory's next request."""
        request = f"{trajectory.id}.{trajectory.attempt}.{trajectory.num_requests}"
        trajectory.num_requests += 1
        trajectory.request = request
        self._inflight[request] = trajectory.id
        return request

    def end(self, request: str) -> None:
        del self._inflight[request]

    def give_up_all(self) -> None:
        """Nobody waits for anything any more."""
        self._waiting.clear()
        self._inflight.clear()

    def give_up(self, request: str) -> None:
        """Its answer is no longer wanted; it may have been given up before."""
        self._inflight.pop(request, None)
