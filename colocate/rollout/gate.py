"""The gate between trajectories and the engine. The scheduler opens it, one request at a time."""

from __future__ import annotations

import asyncio

from colocate.core.types import TrajectoryId


class Gate:
    """A trajectory waits here for leave to make its next request.

    ``is_open`` is False from PARKING to the end of KV_WAKING. A request that was let through just
    before the gate closed, and had not reached the engine, must turn back: its task asks
    ``is_open`` in the same step of the event loop in which it calls the engine.
    """

    def __init__(self) -> None:
        self.is_open = True
        self._waiting: dict[TrajectoryId, asyncio.Future[str]] = {}

    async def wait(self, trajectory: TrajectoryId) -> str:
        """Returns the name of the request that may be made."""
        leave: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._waiting[trajectory] = leave
        try:
            return await leave
        finally:
            # A later attempt of the trajectory may be waiting in this place already.
            if self._waiting.get(trajectory) is leave:
                del self._waiting[trajectory]

    def let_through(self, trajectory: TrajectoryId, request: str) -> None:
        """Raises:
        KeyError: where the trajectory does not wait.
        """
        self._waiting.pop(trajectory).set_result(request)
