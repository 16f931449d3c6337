"""What is tried, in which order, while a phase waits for memory that does not come free.

A call has returned and the device still holds too much. Often it only takes a moment, so each rung
is climbed after a while of waiting, and never while an action is under way. Above the last rung
there is only the phase's deadline, which ends the run with the ledger.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from colocate.core.phases import Phase


class Remedy(StrEnum):
    """COLLECT gives back what garbage and allocators keep; the others evict more than planned."""

    COLLECT = "collect"
    SLEEP_DEEPER = "sleep deeper"
    OFFLOAD_ALL = "offload all"


LADDER: Mapping[Phase, tuple[Remedy, ...]] = {
    Phase.SLEEPING: (Remedy.COLLECT, Remedy.SLEEP_DEEPER, Remedy.SLEEP_DEEPER),
    Phase.TRAINER_OFFLOADING: (Remedy.COLLECT, Remedy.OFFLOAD_ALL),
    Phase.PUBLISHING: (Remedy.COLLECT, Remedy.OFFLOAD_ALL),
}
"""By the phase that waits; the other phases wait for no memory."""


@dataclass(slots=True)
class Ladder:
    """Where one phase stands on its ladder."""

    every_s: float
    _rungs: tuple[Remedy, ...] = ()
    _tried: int = 0
    _since_s: float = 0.0

    def enter(self, phase: Phase, time_s: float) -> None:
        self._rungs = LADDER.get(phase, ())
        self._tried = 0
        self._since_s = time_s

    def wait_from(self, time_s: float) -> None:
        """An action has just returned: what it freed gets its time to be seen."""
        self._since_s = time_s

    def climb(self, time_s: float) -> Remedy | None:
        """The next remedy if it is time for one; the caller passes over one that has no use."""
        if self._tried == len(self._rungs) or time_s < self._since_s + self.every_s:
            return None
        self._tried += 1
        return self._rungs[self._tried - 1]

    @property
    def tried(self) -> tuple[Remedy, ...]:
        return self._rungs[: self._tried]
