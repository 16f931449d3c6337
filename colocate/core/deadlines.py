"""The timers of phases: how long each may take, and how long a rollout may be idle."""

from __future__ import annotations

from colocate.core.actions import SetTimer
from colocate.core.events import TimerFired
from colocate.core.settings import Settings

STOOD_STILL_S = 5.0
"""A timer that fires so much too late tells of a driver that was stopped itself, or blocked."""


def driver_stood_still(fired_s: float, due_s: float) -> bool:
    """Whether a timer comes so late that nobody can be blamed for what it was to watch."""
    return fired_s >= due_s + STOOD_STILL_S


class Deadlines:
    """One timer counts at a time; those that were set before it are known by their names.

    Attributes:
        limit_s: What the present phase, or the step of it that began last, was given.
    """

    def __init__(self, settings: Settings) -> None:
        self.limit_s = 0.0
        self._settings = settings
        self._number = 0
        self._due_s = 0.0

    def enter_phase(self) -> None:
        """No timer of an earlier phase counts any more."""
        self._number += 1

    def set(self, time_s: float, limit_s: float | None = None) -> SetTimer:
        """For the phase, or the step of it, that begins now; None: ``phase_timeout_s``."""
        self._number += 1
        self.limit_s = self._settings.phase_timeout_s if limit_s is None else limit_s
        self._due_s = time_s + self.limit_s
        return SetTimer(timer=self._phase_timer, at_s=self._due_s)

    def watch_idling(self, since_s: float) -> SetTimer:
        """For a rollout in which nothing has happened since then."""
        self._due_s = since_s + self._settings.idle_timeout_s
        return SetTimer(timer=self._idle_timer, at_s=self._due_s)

    def is_of_phase(self, event: TimerFired) -> bool:
        return event.timer == self._phase_timer

    def is_of_idling(self, event: TimerFired) -> bool:
        return event.timer == self._idle_timer

    def stood_still(self, event: TimerFired) -> bool:
        """Whether the timer that counts is too late to be held against anybody."""
        counts = self.is_of_phase(event) or self.is_of_idling(event)
        return counts and driver_stood_still(event.time_s, self._due_s)

    @property
    def _phase_timer(self) -> str:
        return f"deadline:{self._number}"

    @property
    def _idle_timer(self) -> str:
        return f"idle:{self._number}"
