"""What one swap did, gathered on its way: the numbers of its line in the journal."""

from __future__ import annotations

from dataclasses import dataclass, field

from colocate.core.actions import CloseSwap
from colocate.core.cost import OVERHEAD
from colocate.core.phases import SWAP, Phase
from colocate.core.residency import Residency, ordered
from colocate.core.types import MemorySample, SleepMode, Version


@dataclass(slots=True)
class SwapRecord:
    """Begun anew when PARKING is entered."""

    _seconds: dict[Phase, float] = field(default_factory=dict)
    _peak_bytes: int | None = None
    _predicted_s: float | None = None

    def begin(self) -> None:
        self._seconds.clear()
        self._peak_bytes = None

    def predict(self, cost_s: float | None) -> None:
        """What the cost model says that the swap will take without its training."""
        self._predicted_s = cost_s

    def see(self, *samples: MemorySample | None) -> None:
        for sample in samples:
            if sample is not None:
                self._peak_bytes = max(sample.used, self._peak_bytes or 0)

    def left(self, phase: Phase, seconds: float) -> None:
        self._seconds[phase] = round(seconds, 6)

    def close(self, swap: int, version: Version, residency: Residency) -> CloseSwap:
        ledger, plan = residency.ledger, residency.plan
        asleep = None if plan.mode is SleepMode.PAUSE else ledger.asleep
        return CloseSwap(
            swap=swap,
            version=version,
            mode=plan.mode,
            offloaded=ordered(plan.evicted),
            awake_bytes=ledger.awake.used if ledger.awake else None,
            asleep_bytes=asleep.used if asleep else None,
            engine_released_bytes=ledger.released_bytes if asleep else None,
            peak_bytes=self._peak_bytes,
            cost_s=round(sum(self._seconds.get(phase, 0.0) for phase in OVERHEAD), 6),
            predicted_cost_s=self._predicted_s,
            phase_s={phase: self._seconds.get(phase, 0.0) for phase in SWAP},
        )
