"""Arithmetic on memory samples: what a phase has let go of, and what fits beside what.

Bytes throughout. What is not known is None, and decides nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from colocate.core.types import MemorySample

RESIDENT_SHARE = 0.9
"""Of the device, for a plan in which nobody leaves it: the peaks *seen* are lower bounds."""

ENGINE = "engine"
TRAINER = "trainer"


@dataclass(slots=True)
class MemoryLedger:
    """What was measured of each tenant, in the states that matter to a swap.

    ``awake`` is read when PARKING ends (the engine at its largest), ``asleep`` when SLEEPING ends,
    ``woken`` when KV_WAKING ends (what a wake brings back).
    """

    margin_bytes: int = 0
    awake: MemorySample | None = None
    woken: MemorySample | None = None
    asleep: MemorySample | None = None
    peak_used: int = 0
    trainer_peak: int | None = None
    last: MemorySample | None = field(default=None)

    def observe(self, *samples: MemorySample | None) -> None:
        for sample in samples:
            if sample is not None:
                self.last = sample
                self.peak_used = max(self.peak_used, sample.used)

    def observe_training(self, *samples: MemorySample | None) -> None:
        self.observe(*samples)
        held = [s.tenants[TRAINER] for s in samples if s is not None and TRAINER in s.tenants]
        if held:
            self.trainer_peak = max([*held, self.trainer_peak or 0])

    def sleep_level(self, asked: Literal["auto", 0, 1, 2]) -> Literal[0, 1, 2]:
        """What a swap must evict of the engine.

        ``auto``: nothing where the engine as it is awake and the trainer at its measured peak
        fit together; else everything, since the weights are rewritten before the next rollout.
        """
        if asked != "auto":
            return asked
        engine = None if self.awake is None else self.awake.tenants.get(ENGINE)
        if self.awake is None or engine is None or self.trainer_peak is None:
            return 2
        together = engine + self.trainer_peak + self.margin_bytes
        return 0 if together <= RESIDENT_SHARE * self.awake.total else 2

    def has_slept(self, sample: MemorySample | None) -> bool:
        """Whether the engine really holds less than when it was awake, as measured."""
        if sample is None or self.awake is None:
            return True
        before, now = self.awake.tenants.get(ENGINE), sample.tenants.get(ENGINE)
        if before is None or now is None:
            return sample.used < self.awake.used
        return now < before

    def engine_fits(self, sample: MemorySample | None) -> bool:
        """Whether what the engine's wake brings back fits into what is measured free."""
        wanted = self.wanted_by_engine(sample)
        return sample is None or wanted is None or wanted <= sample.free

    def wanted_by_engine(self, sample: MemorySample | None) -> int | None:
        """What its wake brings back beyond what it holds, and the margin."""
        before = self.woken or self.awake
        if sample is None or before is None:
            return None
        will_hold, holds = before.tenants.get(ENGINE), sample.tenants.get(ENGINE)
        if will_hold is None or holds is None:
            return None
        return max(0, will_hold - holds) + self.margin_bytes

    def overdraft(self, sample: MemorySample | None) -> int:
        """Bytes that are held beyond what there is; a budget can be overdrawn, a device cannot."""
        return 0 if sample is None else max(0, sample.used - sample.total)

    def describe(self) -> str:
        """The ledger as one line for an error message."""

        def show(name: str, sample: MemorySample | None) -> str:
            if sample is None:
                return f"{name}: not measured"
            tenants = ", ".join(f"{k} {v >> 20} MiB" for k, v in sorted(sample.tenants.items()))
            return f"{name}: {sample.used >> 20} of {sample.total >> 20} MiB ({tenants})"

        return "; ".join(
            (show("engine awake", self.awake), show("asleep", self.asleep), show("now", self.last))
        )
