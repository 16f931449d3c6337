"""Which parts of a tenant leave the device in a swap: the cheapest set with which both phases fit.

Two constraints, one for each phase, bind two choices that do not depend on each other::

    training:  engine in mode m   + trainer at its peak            + strangers + margin <= device
    rollout:   engine awake       + trainer at rest without T      + strangers + margin <= device

Of the modes that satisfy the first, and of the sets T that satisfy the second, the one that costs
least to evict and restore is taken, as measured in earlier swaps. What was never tried is priced by
the bytes it moves. Where nothing satisfies a constraint, everything is evicted, and the gate
before the next wake decides on what is then measured.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import chain, combinations
from typing import TypeVar

from colocate.core.memory import MemoryLedger
from colocate.core.types import TRAINER_PARTS, MemorySample, Part, SleepMode

RESIDENT_SHARE = 0.9
"""Of the device, for a plan that evicts less than everything: peaks *seen* are lower bounds."""

DEFAULT_RATE_S = 1e-10
"""Seconds a byte, before any eviction was timed: ten gigabytes a second."""

MIN_PEAKS = 3
"""Training steps whose peak was seen, before a swap may be a mere pause on the strength of it."""

MIN_EVICTABLE_SHARE = 0.1
"""Below it the trainer's parts stay where they are whatever is called: the host is the device."""

SMOOTHING = 0.3
"""Weight of the newest measurement of what an eviction costs."""

STICKINESS = 0.8
"""Another choice must promise to cost less than this share of the present one's."""

_EFFORT: dict[SleepMode, dict[Part, float]] = {
    SleepMode.PAUSE: {},
    SleepMode.KV: {Part.KV_CACHE: 1},
    # Rewritten by the publication anyway, where level 1 copies to the host and back.
    SleepMode.LEVEL_2: {Part.KV_CACHE: 1, Part.WEIGHTS: 1},
    SleepMode.LEVEL_1: {Part.KV_CACHE: 1, Part.WEIGHTS: 3},
}
"""Relative to unmapping and mapping a byte."""

Choice = TypeVar("Choice", SleepMode, frozenset[Part])


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapPlan:
    """What leaves the device in one swap, and the numbers it was decided on, in bytes.

    Attributes:
        mode: Of the engine, while the trainer trains.
        offload: Parts of the trainer that leave before the engine's weights come back.
        offload_after_push: Parts that stay until the weights are published from them.
        training_bytes: Predicted to be held at training's peak; None where not known yet.
        rollout_bytes: Predicted to be held in the rollout.
        total_bytes: Of the device.
    """

    mode: SleepMode
    offload: frozenset[Part]
    offload_after_push: frozenset[Part] = frozenset()
    training_bytes: int | None = None
    rollout_bytes: int | None = None
    total_bytes: int | None = None

    @property
    def evicted(self) -> frozenset[Part]:
        """Parts of the trainer that are gone when the rollout begins."""
        return self.offload | self.offload_after_push


EVERYTHING = SwapPlan(mode=SleepMode.LEVEL_2, offload=TRAINER_PARTS)
"""Before anything is measured."""


@dataclass(slots=True)
class RestoreCosts:
    """Seconds that evicting and restoring took, by what was evicted."""

    _measured_s: dict[SleepMode | frozenset[Part], float] = field(default_factory=dict)
    _seconds: float = 0.0
    _bytes: float = 0.0

    def observe(self, choice: SleepMode | frozenset[Part], seconds: float, work: float) -> None:
        """``work`` is what was moved, in bytes, as ``estimate`` is told it."""
        known = self._measured_s.get(choice)
        self._measured_s[choice] = (
            seconds if known is None else known + SMOOTHING * (seconds - known)
        )
        self._seconds += seconds
        self._bytes += work

    def estimate(self, choice: SleepMode | frozenset[Part], work: float) -> float:
        """Seconds: as measured, else by the rate of all that was measured."""
        measured = self._measured_s.get(choice)
        if measured is not None:
            return measured
        return work * (self._seconds / self._bytes if self._bytes else DEFAULT_RATE_S)


class Planner:
    """Chooses the plan of each swap from the ledger and from what earlier swaps cost.

    Args:
        mode: ``None`` to choose; else the engine's mode is given.
        bucket_bytes: What a publication needs beside weights and shards.
    """

    def __init__(self, ledger: MemoryLedger, *, mode: SleepMode | None, bucket_bytes: int) -> None:
        self.costs = RestoreCosts()
        self._ledger = ledger
        self._mode = mode
        self._bucket_bytes = bucket_bytes
        self._present: tuple[SleepMode, frozenset[Part]] | None = None

    def work(self, choice: SleepMode | frozenset[Part]) -> float:
        """Bytes that an eviction and its restoration move."""
        sizes = self._ledger.resident
        if isinstance(choice, SleepMode):
            return sum(sizes.get(p, 0) * effort for p, effort in _EFFORT[choice].items())
        return sum(sizes.get(p, 0) for p in choice)

    def learn(self, choice: SleepMode | frozenset[Part], seconds: float) -> None:
        """What evicting this and restoring it took in all."""
        self.costs.observe(choice, seconds, self.work(choice))

    def plan(self, sample: MemorySample | None) -> SwapPlan:
        """The plan of a swap that begins now.

        Args:
            sample: Read while the engine is awake and parked.
        """
        ledger = self._ledger
        if sample is None or ledger.trainer_peak is None:
            return SwapPlan(mode=self._mode or SleepMode.LEVEL_2, offload=TRAINER_PARTS)
        around = ledger.stranger_bytes(sample) + ledger.margin_bytes
        room = RESIDENT_SHARE * sample.total
        training = {
            m: _add(ledger.engine_will_hold(m), ledger.trainer_peak, around) for m in _MODES
        }
        awake = ledger.engine_bytes(sample)
        sets = self._sets()
        rollout = {t: _add(awake, ledger.trainer_will_hold(t), around) for t in sets}
        modes = _MODES if ledger.num_peaks >= MIN_PEAKS else _MODES[1:]
        mode = self._mode or self._cheapest(
            [m for m in modes if _fits(training[m], room)], SleepMode.LEVEL_2, index=0
        )
        without = self._cheapest(
            [t for t in sets if _fits(rollout[t], room)], TRAINER_PARTS, index=1
        )
        self._present = (mode, without)
        after_push = self._after_push(without, around, room)
        return SwapPlan(
            mode=mode,
            offload=without - after_push,
            offload_after_push=after_push,
            training_bytes=training[mode],
            rollout_bytes=rollout[without],
            total_bytes=sample.total,
        )

    def _sets(self) -> tuple[frozenset[Part], ...]:
        """Sets of parts whose eviction can make a difference; always nothing, and everything."""
        sizes = self._ledger.resident
        share = self._ledger.evictable_share
        parts = [p for p in TRAINER_PARTS if sizes.get(p) and share >= MIN_EVICTABLE_SHARE]
        return (*_subsets(parts), TRAINER_PARTS)

    def _cheapest(self, fitting: Collection[Choice], else_: Choice, *, index: int) -> Choice:
        if not fitting:
            return else_
        present = self._present[index] if self._present else None

        def cost(choice: Choice) -> float:
            estimate = self.costs.estimate(choice, self.work(choice))
            return estimate * STICKINESS if choice == present else estimate

        return min(fitting, key=cost)

    def _after_push(self, without: frozenset[Part], around: int, room: float) -> frozenset[Part]:
        """Parameters are published from where they lie, if they may lie there so long."""
        if Part.PARAMETERS not in without:
            return frozenset()
        engine = self._ledger.engine_will_hold(SleepMode.KV)
        trainer = self._ledger.trainer_will_hold(without - {Part.PARAMETERS})
        needed = _add(engine, trainer, around + self._bucket_bytes)
        return frozenset({Part.PARAMETERS}) if _fits(needed, room) else frozenset()


_MODES = (SleepMode.PAUSE, SleepMode.KV, SleepMode.LEVEL_2, SleepMode.LEVEL_1)


def _subsets(parts: Iterable[Part]) -> tuple[frozenset[Part], ...]:
    """From the smallest; parts in the order of their declaration."""
    ordered = [p for p in Part if p in set(parts)]
    sizes = range(len(ordered) + 1)
    return tuple(map(frozenset, chain.from_iterable(combinations(ordered, n) for n in sizes)))


def _add(*values: int | None) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) else None


def _fits(needed: int | None, room: float) -> bool:
    return needed is not None and needed <= room


def next_deeper(mode: SleepMode) -> SleepMode | None:
    """The mode that takes more from an engine which is already in ``mode``; None at the bottom."""
    order = (SleepMode.PAUSE, SleepMode.KV, SleepMode.LEVEL_2)
    return order[order.index(mode) + 1] if mode in order[:-1] else None
