"""Makes an environment take its time, as a real one does: for tests, studies and the quickstart."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from colocate.config import LatencyConfig
from colocate.ports import Environment, Prompt, StepOutcome


class LatencyModel(Protocol):
    """Seconds that a step takes on top of its own work; the same for the same arguments."""

    def delay_s(self, seed: int, step: int) -> float:
        """Of step ``step`` (from 0) of the episode that was reset with ``seed``."""


class LognormalLatency:
    """Heavy-tailed: ``min(cap, median x exp(sigma z))`` with ``z`` standard normal."""

    def __init__(self, median_s: float, sigma: float, cap_s: float) -> None:
        self._log_median = math.log(median_s)
        self._sigma = sigma
        self._cap_s = cap_s

    def delay_s(self, seed: int, step: int) -> float:
        draw = random.Random(f"{seed}/{step}").gauss(self._log_median, self._sigma)
        return min(self._cap_s, math.exp(min(draw, 700.0)))


class TraceLatency:
    """Replays measured latencies: an episode reads on from a place of its own, round and round.

    Consecutive steps stay neighbours, so slow spells stay spells.
    """

    def __init__(self, latencies_s: Sequence[float], cap_s: float) -> None:
        self._latencies_s = tuple(latencies_s)
        self._cap_s = cap_s

    def delay_s(self, seed: int, step: int) -> float:
        start = random.Random(seed).randrange(len(self._latencies_s))
        return min(self._cap_s, self._latencies_s[(start + step) % len(self._latencies_s)])


def make_latency(config: LatencyConfig) -> LatencyModel | None:
    """The configured latency; ``None`` where it is off.

    Raises:
        ValueError: `environment.latency.trace` is missing, unreadable, or no list of seconds.
    """
    if config.kind == "off":
        return None
    if config.kind == "lognormal":
        return LognormalLatency(config.median_s, config.sigma, config.cap_s)
    if config.trace is None:
        raise ValueError(
            "environment.latency.trace must name a file where environment.latency.kind is "
            "'trace'; it is null"
        )
    return TraceLatency(_read_trace(Path(config.trace)), config.cap_s)


class DelayedEnvironment:
    """An environment whose every step takes longer by what the model says."""

    def __init__(self, inner: Environment, latency: LatencyModel) -> None:
        self._inner = inner
        self.is_replayable = getattr(inner, "is_replayable", False)
        self._latency = latency
        self._seed = 0
        self._num_steps = 0

    async def reset(self, prompt: Prompt, seed: int) -> str:
        self._seed = seed
        return await self._inner.reset(prompt, seed)

    async def step(self, action: str) -> StepOutcome:
        delay_s = self._latency.delay_s(self._seed, self._num_steps)
        self._num_steps += 1
        await asyncio.sleep(delay_s)
        return await self._inner.step(action)

    async def close(self) -> None:
        await self._inner.close()


def _read_trace(path: Path) -> list[float]:
    field = "environment.latency.trace"
    try:
        lines = path.read_text().split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{field} cannot be read: {error}; give a text file") from error
    latencies_s: list[float] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            latency_s = float(line)
        except ValueError:
            latency_s = math.nan
        if not (math.isfinite(latency_s) and latency_s >= 0):
            raise ValueError(
                f"{field} ({path}), line {number}: {line.strip()!r} is no latency; each line is a "
                "number of seconds, at least 0"
            )
        latencies_s.append(latency_s)
    if not latencies_s:
        raise ValueError(f"{field} ({path}) holds no latency; give one number of seconds a line")
    return latencies_s
