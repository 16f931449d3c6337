"""All engines of a simulation: which of them takes a request, and what its prefix cache holds.

The rule is that of the real pool (``adapters/load_balance.py``): the engine with the fewest
requests, unless the trajectory's last engine, which holds its earlier turns, leads it by no more
than ``max(SLACK, least // 2)``.
"""

from __future__ import annotations

import math

from colocate.sim.batching import BatchingEngine, Sequence
from colocate.sim.episodes import Episode
from colocate.sim.world import World

SLACK = 4

BLOCK_TOKENS = 16
"""The prefix cache keeps whole blocks only; vLLM's default size."""


class Fleet:
    """``changed`` holds the engines whose next event has moved; the caller empties it."""

    def __init__(self, world: World) -> None:
        self.engines: list[BatchingEngine[Episode]] = [
            BatchingEngine(
                world.sim.engine, max_num_seqs=world.max_num_seqs, kv_tokens=world.kv_tokens
            )
            for _ in range(world.num_engines)
        ]
        self.changed: set[int] = set()
        self._loads = [0] * world.num_engines
        self._kept: dict[Episode, tuple[int, int]] = {}
        self._prompts: list[set[int]] = [set() for _ in range(world.num_engines)]

    def submit(self, episode: Episode, time_s: float) -> None:
        """Hands an episode's request to an engine; notes what the engine has cached of it."""
        index, cached = self._choose(episode)
        prompts = self._prompts[index]
        if episode.group in prompts:
            cached = max(cached, episode.script.prompt)
        prompts.add(episode.group)
        # As vLLM does, the last token is always computed: its logits are needed.
        cached = min(cached, episode.context - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        episode.cached, episode.engine = cached, index
        engine = self.engines[index]
        engine.advance(time_s)
        engine.submit(
            Sequence(owner=episode, context=episode.context, cached=cached, left=episode.left)
        )
        self._loads[index] += 1
        self.changed.add(index)

    def collect(self, index: int, time_s: float) -> list[Sequence[Episode]]:
        """At the engine's next event: the requests that are done."""
        engine = self.engines[index]
        engine.advance(time_s)
        done = engine.collect()
        self._loads[index] -= len(done)
        for sequence in done:
            episode = sequence.owner
            self._kept[episode] = (index, episode.context + sequence.sampled)
            episode.engine = None
        self.changed.add(index)
        return done

    def park(self, time_s: float) -> list[Sequence[Episode]]:
        """Aborts everything, and drops the prefix caches: the weights will be others."""
        aborted: list[Sequence[Episode]] = []
        for index, engine in enumerate(self.engines):
            engine.advance(time_s)
            aborted += engine.abort_all()
            self._loads[index] = 0
            self._prompts[index].clear()
            self.changed.add(index)
        for sequence in aborted:
            sequence.owner.engine = None
        self._kept.clear()
        return aborted

    def forget(self, episode: Episode, time_s: float) -> None:
        """The episode is over; a request that it still has at an engine is aborted."""
        self._kept.pop(episode, None)
        index, episode.engine = episode.engine, None
        if index is not None:
            engine = self.engines[index]
            engine.advance(time_s)
            engine.abort(episode)
            self._loads[index] -= 1
            self.changed.add(index)

    @property
    def num_preemptions(self) -> int:
        return sum(engine.num_preemptions for engine in self.engines)

    @property
    def busy_s(self) -> float:
        """Seconds that engines computed, summed over engines."""
        return math.fsum(engine.busy_s for engine in self.engines)

    def _choose(self, episode: Episode) -> tuple[int, int]:
        """The engine, and how many tokens of the episode it has seen since the last swap."""
        loads = self._loads
        owed = min(loads)
        last, tokens = self._kept.get(episode, (-1, 0))
        if last >= 0 and loads[last] - owed <= max(SLACK, owed // 2):
            return last, tokens
        return loads.index(owed), 0
