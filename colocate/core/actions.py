"""Commands that go out. The driver carries each out and answers with events.

Actions of a phase (``PhaseAction``) are answered by ``PhaseEnded`` of that phase, ``Train`` by
``BatchTrained``; anything that breaks is answered by ``Faulted``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from colocate.core.phases import Phase
from colocate.core.remedies import Remedy
from colocate.core.types import (
    BatchId,
    Ending,
    GroupId,
    Part,
    ReplayLease,
    SleepMode,
    TrajectoryId,
    Version,
)


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
class ResumeTrajectory(Action):
    """Go on with an episode of an earlier life, whose content the checkpoint holds.

    Answered by ``EpisodeResumed`` or ``EpisodeNotResumed``; one without content just begins.
    """

    trajectory: TrajectoryId
    group: GroupId
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUpGroup(Action):
    """Forget a group of an earlier life that this run has no place for.

    Its prompt is drawn again. ``trajectories`` are those that had not ended; they are none of this
    life's.
    """

    group: GroupId
    trajectories: tuple[TrajectoryId, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitRequest(Action):
    """The gate opens for one request; answered by ``RequestEnded``."""

    trajectory: TrajectoryId
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class EndTrajectory(Action):
    """Close its environment, forget its content. ``reason`` is for people.

    ``keeps_content``: the content may be replayed, and stays until ``ForgetContent`` names it.
    """

    trajectory: TrajectoryId
    ending: Ending
    reason: str
    keeps_content: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetContent(Action):
    """These trajectories, all of a group that was kept, will not be replayed (again)."""

    group: GroupId
    trajectories: tuple[TrajectoryId, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluate(Action):
    """Begin so many episodes on held-out prompts; answered by ``EvaluationEnded``.

    The engine holds ``version`` until then, or until ``CutEvaluation``.
    """

    version: Version
    num_samples: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitEvaluation(Action):
    """The gate opens for one request of an evaluation; answered by ``EvaluationRequestEnded``."""

    version: Version
    sample: int
    request: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CutEvaluation(Action):
    """End the episodes of an evaluation that are not over; ``EvaluationEnded`` tells the rest.

    ``is_void``: no metrics are told, since it is to be done again.
    """

    version: Version
    reason: str
    is_void: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RateCheckpoint(Action):
    """The checkpoint of ``version`` is worth ``value`` (more is better); ``by`` says of what."""

    version: Version
    value: float
    by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SetTimer(Action):
    """Answer with ``TimerFired`` at this time.

    One of each kind counts, which is the name up to a colon: it takes the place of the one before.
    What fires all the same is ignored where it no longer counts.
    """

    timer: str
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleMemory(Action):
    """Answer with ``MemorySampled``, a moment later."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptPlan(Action):
    """What this swap evicts, and the predictions it was decided on. Nothing is carried out.

    Bytes; None where not known yet. ``training_bytes`` is of training's peak, ``rollout_bytes`` of
    the rollout that follows, each with the margin.
    """

    mode: SleepMode
    offload: tuple[Part, ...]
    offload_after_push: tuple[Part, ...]
    training_bytes: int | None
    rollout_bytes: int | None
    total_bytes: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Relieve(Action):
    """Make room while a phase waits for memory; answered by ``Relieved``.

    ``mode`` goes with SLEEP_DEEPER, ``parts`` with OFFLOAD_ALL.
    """

    remedy: Remedy
    mode: SleepMode | None = None
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Warn(Action):
    """Tell a person, now and at the end."""

    message: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decide(Action):
    """What the swap policy decided, and the numbers it did so on. Nothing is carried out.

    ``num_batches`` above 0: swap now and train so many; 0: stay, though a swap was possible.
    Rates are tokens a second; None where unknown, or of no use to the policy. What each number is,
    ``colocate.core.prospects.Why`` and ``docs/when-to-swap.md`` say.
    """

    policy: str
    reason: str
    num_batches: int
    num_ready_batches: int
    rollout_s: float
    num_unfinished: int
    num_decoding: int
    num_waiting: int
    num_queued: int
    current_rate: float | None = None
    cycle_rate: float | None = None
    swap_cost_s: float | None = None
    swap_cost_error_s: float | None = None
    reprefill_s: float | None = None
    lost_tokens: int | None = None
    place_tokens: float | None = None
    horizon_s: float | None = None
    horizon_tokens: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseSwap(Action):
    """One swap is complete. Nothing is carried out: this is its line in the journal.

    ``awake_bytes`` and ``asleep_bytes`` are of the device, as measured when PARKING and SLEEPING
    ended; ``engine_released_bytes`` is by how much the engine's own memory fell in between.
    ``peak_bytes`` is the most that was seen on the device in this swap. ``cost_s`` is what the swap
    took without its training, ``predicted_cost_s`` what the cost model said when it began; None
    for the first.
    """

    swap: int
    version: Version
    mode: SleepMode
    offloaded: tuple[Part, ...]
    awake_bytes: int | None
    asleep_bytes: int | None
    engine_released_bytes: int | None
    peak_bytes: int | None
    cost_s: float | None = None
    predicted_cost_s: float | None = None
    phase_s: Mapping[Phase, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBack(Action):
    """Abandon all that came after a checkpoint, and go back to what it holds.

    ``StartPorts`` follows in the same line, and so does ``ResumeTrajectory`` for each trajectory
    that is unfinished again. Before the first checkpoint of a life the run goes back to that
    life's beginning.

    Attributes:
        version: The checkpoint's; the run's origin's where there is none since.
        attempt: That every trajectory which is resident again now has; none had it before.
        steps, trajectories, tokens: What is abandoned: training steps, trajectories that the
            checkpoint does not know, tokens that were sampled since.
        reason: What the trainer was lost to.
    """

    version: Version
    incarnation: int
    attempt: int
    steps: int
    trajectories: int
    tokens: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseAction(Action):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class StartPorts(PhaseAction):
    """Start trainer and engine; restore the trainer where ``version`` is above 0.

    ``expect``: have the restored trainer score what ``WakeKv.verify`` will compare.
    ``incarnation`` above 0: end what is left of the trainer and the engine before, and leave the
    engine parked.
    """

    version: Version
    expect: bool = False
    incarnation: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StartEngine(PhaseAction):
    """End what is left of the engine, offload these parts of the trainer, start a new engine.

    It is left parked: its weights are those of no version that may be served. Every request that
    the old one had comes back as aborted.
    """

    incarnation: int
    offload: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Park(PhaseAction):
    """Close the gate and abort what is in flight."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sleep(PhaseAction):
    mode: SleepMode


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadTrainer(PhaseAction):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Train(Action):
    """Train these trajectories, in this order, in one step that begins at ``version``.

    ``replays`` follow them: groups that were trained before, each under a lease of its own.
    """

    batch: BatchId
    version: Version
    trajectories: tuple[TrajectoryId, ...]
    replays: tuple[ReplayLease, ...] = ()

    @property
    def contents(self) -> tuple[TrajectoryId, ...]:
        """Whose content the trainer is given, in its order; digests come back in this order."""
        return (*self.trajectories, *(t for r in self.replays for t in r.trajectories))


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadTrainer(PhaseAction):
    """Write a checkpoint of the present state if asked to, then offload these parts, perhaps none.

    ``expect``: before that, have the trainer score what ``WakeKv.verify`` will compare.
    """

    parts: tuple[Part, ...]
    checkpoint: bool
    version: Version
    expect: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeWeights(PhaseAction):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish(PhaseAction):
    """Publish the weights, then offload the parts that had stayed for it."""

    version: Version
    offload: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WakeKv(PhaseAction):
    """Give the engine its KV cache back, or only unpause it where it never slept.

    ``verify``: compare its log-probabilities with the trainer's before the gate opens.
    """

    asleep: bool
    verify: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseRun(PhaseAction):
    """End all trajectories' tasks, write a checkpoint if asked to, close the ports.

    The checkpoint is of the state at this moment: what comes in later is not heeded.
    """

    checkpoint: bool
    version: Version
