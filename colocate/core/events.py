"""Facts that come in. Whatever a decision reads is here, with its time.

Each event is one line of the journal. Times are seconds on the run's clock, which starts at 0.
Events about a trajectory carry two digests of its content (tokens, log-probabilities, versions,
mask): ``base``, taken afresh before anything was appended, and ``digest``, taken after. The core
compares ``base`` with the last ``digest`` that it was told: what was parked is what goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from colocate.core.buffer_snapshot import BufferSnapshot
from colocate.core.phases import Phase
from colocate.core.remedies import Remedy
from colocate.core.settings import Settings
from colocate.core.types import (
    BatchId,
    Ending,
    FinishReason,
    GroupId,
    MemorySample,
    Part,
    Span,
    TrajectoryId,
    Version,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PortEvent(Event):
    """An answer of engine or trainer, or word of them.

    ``incarnation`` is the number of recoveries before what it answers was begun. What comes of an
    earlier incarnation than the present one was given up: it is counted as late, and not used.
    """

    incarnation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptCursor:
    """Where the prompt stream stands: what comes next, and what is to be drawn once more first."""

    next_position: GroupId = GroupId(0)
    pending: tuple[GroupId, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted(Event):
    """The first event of a journal.

    Attributes:
        version: Above 0 where the run resumes from a checkpoint.
        learned: What the cost model knew then (``CostModel.snapshot``); None: nothing.
        evaluated: The last version that an earlier life evaluated; None: none.
    """

    settings: Settings
    version: Version = Version(0)
    cursor: PromptCursor = PromptCursor()
    learned: Mapping[str, Any] | None = None
    evaluated: Version | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinePosition:
    """A line of a journal, by its number and its chain."""

    seq: int
    chain: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored(Event):
    """The second event of a journal whose run resumes with a buffer.

    Attributes:
        buffer: As the checkpoint holds it.
        saved_after: The line of the earlier life's journal that the checkpoint was written after.
    """

    buffer: BufferSnapshot
    saved_after: LinePosition | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEnded(PortEvent):
    """The action of a phase has been carried out.

    Attributes:
        memory: Read right after, where there is a probe.
        peak: The largest reading during the phase, where there was one.
        version: PUBLISHING only: the version that the engine now reports.
        held: Bytes on the device by part, as the port that the action concerned reports them.
    """

    phase: Phase
    memory: MemorySample | None = None
    peak: MemorySample | None = None
    version: Version | None = None
    held: Mapping[Part, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PartsReported(PortEvent):
    """What the trainer holds with everything on the device, before its first offload."""

    held: Mapping[Part, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Relieved(PortEvent):
    """The answer to ``Relieve``: the remedy has been applied."""

    remedy: Remedy
    memory: MemorySample | None = None
    held: Mapping[Part, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Faulted(Event):
    """Something outside the core broke in a way that ends the run."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointWritten(PortEvent):
    """The checkpoint that ``OffloadTrainer`` asked for is whole: a rollback goes back to it."""

    version: Version


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLost(PortEvent):
    """A process of the engine has ended, and with it all that the engine held."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerLost(PortEvent):
    """A trainer's rank has ended, and with it the state that the ranks held together."""

    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySampled(PortEvent):
    """The answer to ``SampleMemory``."""

    memory: MemorySample


@dataclass(frozen=True, slots=True, kw_only=True)
class TimerFired(Event):
    timer: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StopRequested(Event):
    """A person or a batch system asks for an orderly end, by this signal."""

    signal: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnReady(Event):
    """The environment has answered (or begun), and the trajectory wants to be generated on.

    Attributes:
        num_context_tokens: Length of the context now.
        busy_s: How long the environment took; it ended at ``time_s``.
    """

    trajectory: TrajectoryId
    attempt: int
    num_context_tokens: int
    busy_s: float
    base: str
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeResumed(Event):
    """The environment of a trajectory of an earlier life is where it was; it has been replayed.

    ``num_steps`` recorded actions were taken again, and every answer was as recorded.
    """

    trajectory: TrajectoryId
    attempt: int
    num_steps: int
    busy_s: float
    base: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeNotResumed(Event):
    """The environment of a trajectory of an earlier life cannot be brought to where it was."""

    trajectory: TrajectoryId
    attempt: int
    reason: str
    busy_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestEnded(Event):
    """A request has returned, whole or aborted. ``spans`` are of the tokens it sampled.

    One that was made for an earlier ``attempt``, or for a trajectory that has ended since, was
    given up: its answer is counted as late, and not used.

    ``num_dropped_tokens`` were sampled past a stop string that a park had split; they are not in
    ``spans``.
    """

    trajectory: TrajectoryId
    attempt: int
    request: str
    finish_reason: FinishReason
    spans: tuple[Span, ...]
    num_cached_tokens: int
    base: str
    digest: str
    num_dropped_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryFinished(Event):
    """The trajectory is over and its reward is known.

    ``masked``: the environment called the episode invalid. ``truncated``: what it ran out of, as
    the configuration names it (``"rollout.max_turns"``); None where it came to its own end.
    """

    trajectory: TrajectoryId
    attempt: int
    reward: float
    busy_s: float
    base: str
    masked: bool = False
    truncated: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryLost(Event):
    """A fault ended the trajectory.

    ``ending`` is FILTERED for a passing fault of its environment, FAILED for a fault of ours.
    """

    trajectory: TrajectoryId
    attempt: int
    ending: Ending
    reason: str
    busy_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTrained(PortEvent):
    """The trainer acknowledges a batch.

    Attributes:
        version: The trainer's version after the step.
        digests: Of the content that was trained, in the order of the lease.
        num_tokens: Tokens that bore a gradient.
        metrics: As in ``metrics.jsonl``.
    """

    batch: BatchId
    version: Version
    digests: tuple[str, ...]
    num_tokens: int
    metrics: Mapping[str, float] = field(default_factory=dict)
    memory: MemorySample | None = None
    peak: MemorySample | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationTurnReady(Event):
    """A sample of the evaluation of ``version`` wants to be generated on.

    Samples are numbered from 0. They are no trajectories: the buffer does not know them.
    """

    version: Version
    sample: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRequestEnded(Event):
    """A request of an evaluation has returned. ``spans`` are of the tokens it sampled."""

    version: Version
    sample: int
    request: str
    spans: tuple[Span, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationEnded(Event):
    """Every sample of an evaluation has a verdict, or will not get one.

    Attributes:
        num_scored: Samples whose reward is known.
        num_cut: Those that ``CutEvaluation`` ended before.
        lost: The others, by what was wrong with each.
        metrics: As in ``eval.jsonl``; empty where nothing was scored.
    """

    version: Version
    num_scored: int
    num_cut: int = 0
    lost: Mapping[str, int] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
