"""When to swap. A policy is a pure function of what a rollout looks like at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from colocate.core.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutView:
    """What a policy may look at. Times in seconds on the run's clock.

    Attributes:
        num_ready_batches: Full batches that could be leased now, within the bound.
        num_unfinished: Trajectories that are still being generated, or in their environments; 0
            where all that are left belong to spare groups.
        num_steps_left: Training steps until the run is done.
        max_batches: The most that one training phase may take: the bound allows S + 1.
    """

    time_s: float
    rollout_started_s: float
    num_ready_batches: int
    num_unfinished: int
    num_steps_left: int
    max_batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """Swap now and train this many batches."""

    num_batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Stay:
    """Go on generating; ask again when something changes, or at ``until_s``."""

    until_s: float | None = None


class SwapPolicy(Protocol):
    def decide(self, view: RolloutView) -> Swap | Stay:
        """Must return ``Swap`` only where ``1 <= num_batches <= num_ready_batches``."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Swap as soon as a fixed number of batches is ready."""

    num_batches: int

    def decide(self, view: RolloutView) -> Swap | Stay:
        wanted = min(self.num_batches, view.num_steps_left)
        return Swap(num_batches=wanted) if view.num_ready_batches >= wanted else Stay()


@dataclass(frozen=True, slots=True)
class Timed:
    """Swap after a fixed time of rollout, with as many batches as are ready, at least one."""

    period_s: float

    def decide(self, view: RolloutView) -> Swap | Stay:
        due_s = view.rollout_started_s + self.period_s
        if view.time_s < due_s:
            return Stay(until_s=due_s)
        ready = min(view.num_ready_batches, view.max_batches, view.num_steps_left)
        return Swap(num_batches=ready) if ready else Stay()


@dataclass(frozen=True, slots=True)
class Drain:
    """The synchronous baseline: wait for all that is needed of what was admitted, carry nothing.

    What is not needed are spares of redundancy: the swap cancels them, or was told to carry them.
    """

    num_batches: int

    def decide(self, view: RolloutView) -> Swap | Stay:
        wanted = min(self.num_batches, view.num_steps_left)
        if view.num_unfinished or view.num_ready_batches < wanted:
            return Stay()
        return Swap(num_batches=wanted)


def make_policy(settings: Settings) -> SwapPolicy:
    """The policy that the settings name."""
    match settings.policy:
        case "interval":
            return Interval(settings.swap_interval)
        case "drain":
            return Drain(settings.swap_interval)
        case "timed":
            assert settings.period_s is not None
            return Timed(settings.period_s)
