"""How long a run's engine was at work, from its journal."""

from __future__ import annotations

from collections.abc import Iterable

from colocate.core.actions import SubmitRequest
from colocate.core.events import RequestEnded
from colocate.journal import Entry


def engine_busy_s(entries: Iterable[Entry]) -> float:
    """Seconds in which at least one request was with the engine.

    The gate is shut in a swap and what is in flight is aborted first, so these seconds lie in the
    rollout but for what an abort takes.
    """
    busy_s = last_s = 0.0
    in_flight: set[str] = set()
    for entry in entries:
        if in_flight:
            busy_s += entry.event.time_s - last_s
        last_s = entry.event.time_s
        if isinstance(entry.event, RequestEnded):
            in_flight.discard(entry.event.request)
        in_flight.update(a.request for a in entry.actions if isinstance(a, SubmitRequest))
    return busy_s
