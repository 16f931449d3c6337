"""Timers that the scheduler asked for, on the running loop's clock."""

from __future__ import annotations

import asyncio

from colocate.core.actions import SetTimer
from colocate.core.events import TimerFired
from colocate.driver.context import Context

CLOCK_TICK_S = 1e-6
"""The run's clock is rounded to it."""


class Timers:
    """One of each kind: what a deadline was for is over when the next one is set."""

    def __init__(self, run: Context) -> None:
        self._run = run
        self._of_kind: dict[str, asyncio.TimerHandle] = {}

    def set(self, action: SetTimer) -> None:
        """Posts ``TimerFired`` when it is time; takes the place of one of the same kind."""

        def fire() -> None:
            del self._of_kind[kind]
            self._run.post(TimerFired(time_s=self._run.now_s(), timer=action.timer))

        kind = action.timer.partition(":")[0]
        # A run that is faster than its deadlines would else hold thousands of them.
        if earlier := self._of_kind.get(kind):
            earlier.cancel()
        # A tick late, so that the rounded clock never reads less than the time that was asked for:
        # who waits for that time would find it too early, and is not asked again.
        at_s = self._run.origin_s + action.at_s + CLOCK_TICK_S
        self._of_kind[kind] = asyncio.get_running_loop().call_at(at_s, fire)

    def cancel(self) -> None:
        """All of them."""
        for timer in self._of_kind.values():
            timer.cancel()
        self._of_kind.clear()
