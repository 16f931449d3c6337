"""Which of several equal engines takes a request.

An engine's load is what it owes an answer to: the number of requests, then, where those are equal,
the tokens of their prompts. The least loaded engine takes a request, with one exception: a request
of a key that was served before goes where it was served last, since that engine's prefix cache
holds the earlier turns. The exception ends where it would cost more than it saves: an engine with
more than ``max(SLACK, least // 2)`` requests above the least loaded one takes none on account of a
key, so that

    requests(chosen engine) - requests(least loaded) <= max(SLACK, requests(least loaded) // 2)

holds whenever a request is assigned.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SLACK = 4
"""Requests by which an engine may lead the least loaded one and still be chosen for its cache."""


@dataclass(slots=True)
class Load:
    """What one engine owes: requests, and the tokens of their prompts."""

    requests: int = 0
    prompt_tokens: int = 0


class LoadBalancer:
    """Assigns requests to engines and keeps count until they are answered.

    Attributes:
        loads: One per engine.
    """

    def __init__(self, num_engines: int) -> None:
        self.loads = [Load() for _ in range(num_engines)]
        self._served_by: dict[str, int] = {}

    @contextmanager
    def assigned(self, affinity: str | None, num_prompt_tokens: int) -> Iterator[int]:
        """Within it, the engine whose index it yields owes one more request."""
        index = self._choose(affinity)
        if affinity is not None:
            self._served_by[affinity] = index
        load = self.loads[index]
        load.requests += 1
        load.prompt_tokens += num_prompt_tokens
        try:
            yield index
        finally:
            load.requests -= 1
            load.prompt_tokens -= num_prompt_tokens

    def forget(self) -> None:
        """Forgets who served whom: the engines' caches were emptied."""
        self._served_by.clear()

    def _choose(self, affinity: str | None) -> int:
        least = min(
            range(len(self.loads)),
            key=lambda index: (self.loads[index].requests, self.loads[index].prompt_tokens),
        )
        last = None if affinity is None else self._served_by.get(affinity)
        if last is None:
            return least
        owed = self.loads[least].requests
        lead = self.loads[last].requests - owed
        return last if lead <= max(SLACK, owed // 2) else least
