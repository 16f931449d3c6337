"""When to swap. A policy decides on what a rollout looks like at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from colocate.core.adaptive import Adaptive
from colocate.core.cost import CostModel
from colocate.core.prospects import RolloutView, Stay, Swap, Why
from colocate.core.settings import Settings


class SwapPolicy(Protocol):
    def decide(self, view: RolloutView) -> Swap | Stay:
        """Must return ``Swap`` only where ``1 <= num_batches <= num_ready_batches``."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Swap as soon as a fixed number of batches is ready."""

    num_batches: int

    def decide(self, view: RolloutView) -> Swap | Stay:
        ready = view.num_ready_batches
        if not ready or ready < (wanted := view.wanted(self.num_batches)):
            return Stay()
        return Swap(wanted, Why(reason="as many batches are ready as a swap is to train"))


@dataclass(frozen=True, slots=True)
class Timed:
    """Swap after a fixed time of rollout, with as many batches as are ready, at least one."""

    period_s: float

    def decide(self, view: RolloutView) -> Swap | Stay:
        due_s = view.rollout_started_s + self.period_s
        if view.time_s < due_s:
            return Stay(until_s=due_s)
        ready = min(view.num_ready_batches, view.max_batches, view.num_steps_left)
        if not ready:
            return Stay()
        return Swap(ready, Why(reason=f"{self.period_s} s of rollout are over"))


@dataclass(frozen=True, slots=True)
class Drain:
    """The synchronous baseline: wait for all that is needed of what was admitted, carry nothing.

    What is not needed are spares of redundancy: the swap cancels them, or was told to carry them.
    """

    num_batches: int

    def decide(self, view: RolloutView) -> Swap | Stay:
        ready = view.num_ready_batches
        if view.num_unfinished or not ready or ready < (wanted := view.wanted(self.num_batches)):
            return Stay()
        return Swap(wanted, Why(reason="nothing is unfinished"))


def make_policy(settings: Settings, costs: CostModel) -> SwapPolicy:
    """The policy that the settings name."""
    match settings.policy:
        case "interval":
            return Interval(settings.swap_interval)
        case "drain":
            return Drain(settings.swap_interval)
        case "timed":
            assert settings.period_s is not None
            return Timed(settings.period_s)
        case "adaptive":
            return Adaptive(
                costs,
                group_size=settings.group_size,
                groups_per_step=settings.groups_per_step,
                max_requests=settings.max_requests,
                warmup_swaps=settings.warmup_swaps,
                hysteresis=settings.hysteresis,
            )
