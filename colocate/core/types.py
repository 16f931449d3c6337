"""Identifiers and the small values that everything else speaks in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NewType

TrajectoryId = NewType("TrajectoryId", int)
"""Numbered in the order of admission, over the whole life of a run."""

GroupId = NewType("GroupId", int)
"""The position of the group's prompt in the prompt stream."""

BatchId = NewType("BatchId", int)
"""Numbered in the order of leasing."""

Version = NewType("Version", int)
"""Number of training steps that the weights have taken."""

ReplayId = NewType("ReplayId", int)
"""One more use of a group that was trained before; numbered in the order of leasing."""


class FinishReason(StrEnum):
    """Why the engine stopped generating a request."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Ending(StrEnum):
    """How a trajectory ends. The first ending wins; one that has none is resident."""

    TRAINED = "trained"
    EXPIRED = "expired"
    MASKED = "masked"
    FILTERED = "filtered"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A run of consecutive *sampled* tokens that one version of the weights produced.

    Observation tokens are not counted: the spans of a trajectory cover exactly its trainable
    tokens, in order. Example: ``Span(version=3, length=12)``.
    """

    version: Version
    length: int


def merge_spans(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Joins neighbours of one version and drops empty spans."""
    merged: list[Span] = []
    for span in spans:
        if span.length == 0:
            continue
        if merged and merged[-1].version == span.version:
            span = Span(version=span.version, length=merged.pop().length + span.length)
        merged.append(span)
    return tuple(merged)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayLease:
    """One more use of a group that was trained before; it takes the place of a group in a batch.

    Attributes:
        origin: The batch that the group was first trained in.
        trajectories: Those that bore its gradient, in slot order.
    """

    replay: ReplayId
    origin: BatchId
    group: GroupId
    trajectories: tuple[TrajectoryId, ...]


class Part(StrEnum):
    """What a tenant holds of the device and can be made to give up.

    The engine's: ``KV_CACHE`` and ``WEIGHTS``. The trainer's, shards of one rank: ``PARAMETERS`` as
    the forward pass reads them, ``GRADIENTS``, ``OPTIMIZER`` (master weights and moments),
    ``REFERENCE`` (the frozen model that a KL term is taken to).
    """

    KV_CACHE = "kv_cache"
    WEIGHTS = "weights"
    GRADIENTS = "gradients"
    OPTIMIZER = "optimizer"
    REFERENCE = "reference"
    PARAMETERS = "parameters"


ENGINE_PARTS = frozenset({Part.KV_CACHE, Part.WEIGHTS})
TRAINER_PARTS = frozenset(Part) - ENGINE_PARTS


class SleepMode(StrEnum):
    """What a swap takes from the engine, from least to most; PAUSE takes nothing.

    ``LEVEL_1`` keeps a copy of the weights in host memory, ``LEVEL_2`` keeps none: after it only a
    publication makes the engine usable. The names are vLLM's; KV is its release of the cache alone.
    """

    PAUSE = "0"
    KV = "kv"
    LEVEL_1 = "1"
    LEVEL_2 = "2"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySample:
    """What a memory probe read at one instant, in bytes.

    ``used`` and ``total`` are of the *device*: the GPU where there is one, else the configured
    budget or the machine's RAM. ``tenants`` is what the processes of each tenant hold of it
    (``"engine"``, ``"trainer"``); a tenant whose bytes cannot be known is absent, never zero.
    ``host_used`` is the RAM that all processes of the run hold, pinned memory included, and
    ``host_free`` what they may still take: the smaller of what ``memory.host_budget_bytes``
    leaves and what the machine has available.
    """

    used: int
    total: int
    tenants: Mapping[str, int] = field(default_factory=dict)
    host_used: int | None = None
    host_free: int | None = None

    @property
    def free(self) -> int:
        return max(0, self.total - self.used)
