"""Commands that go out. The driver carries each out and answers with events.

Actions of a phase (``PhaseAction``) are answered by ``PhaseEnded`` of that phase, ``Train`` by
``BatchTrained``; anything that breaks is answered by ``Faulted``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from colocate.core.events import PromptCursor
from colocate.core.types import BatchId, Ending, GroupId, TrajectoryId, Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class StartTrajectory(Action):
    """Begin an episode on the group's prompt. A later attempt replaces an earlier one."""

    trajectory: TrajectoryId
    group: GroupId
    attempt: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest(Action):
    """The gate opens for one request; answered by ``RequestEnded``."""

    trajectory: TrajectoryId
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTrajectory(Action):
    """Close its environment, forget its content. ``reason`` is for people."""

    trajectory: TrajectoryId
    ending: Ending
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer(Action):
    """Answer with ``TimerFired`` at this time. Timers are not cancelled; late ones are ignored."""

    timer: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleMemory(Action):
    """Answer with ``MemorySampled``, a moment later."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseAction(Action):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPorts(PhaseAction):
    """Start trainer and engine; restore the trainer where ``version`` is above 0."""

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class Park(PhaseAction):
    """Close the gate and abort what is in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep(PhaseAction):
    level: Literal[1, 2]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTrainer(PhaseAction):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Train(Action):
    """Train these trajectories, in this order, in one step that begins at ``version``."""

    batch: BatchId
    version: Version
    trajectories: tuple[TrajectoryId, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadTrainer(PhaseAction):
    """Write a checkpoint where a cursor is given, then offload where asked."""

    offload: bool
    checkpoint: PromptCursor | None
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeWeights(PhaseAction):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish(PhaseAction):
    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeKv(PhaseAction):
    """Give the engine its KV cache back, or only unpause it where it never slept."""

    asleep: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRun(PhaseAction):
    """End all trajectories' tasks, write a checkpoint where a cursor is given, close the ports."""

    checkpoint: PromptCursor | None
    version: Version
