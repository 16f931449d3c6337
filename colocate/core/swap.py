"""The swap protocol: which phase follows, what it must have achieved, and when it has failed."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Literal

from colocate.core import crossing, redundancy
from colocate.core.acknowledgement import check_acknowledgement
from colocate.core.actions import (
    Action,
    CloseRun,
    EndTrajectory,
    LoadTrainer,
    OffloadTrainer,
    Park,
    Publish,
    SampleMemory,
    SetTimer,
    StartPorts,
    Train,
    WakeKv,
    WakeWeights,
    Warn,
)
from colocate.core.admission import RequestQueue
from colocate.core.best_checkpoint import rate_by_reward
from colocate.core.books import Books
from colocate.core.buffer import Buffer, Lease
from colocate.core.checkpointing import CheckpointSchedule
from colocate.core.cost import CostModel
from colocate.core.deadlines import Deadlines
from colocate.core.departure import Departure
from colocate.core.evaluation import Evaluations
from colocate.core.events import (
    BatchTrained,
    EvaluationEnded,
    Faulted,
    MemorySampled,
    PartsReported,
    PhaseEnded,
    Relieved,
    RunStarted,
    StopRequested,
    TimerFired,
)
from colocate.core.flat_groups import replace_flat_groups
from colocate.core.memory import MemoryLedger
from colocate.core.phases import Cause, Phase, next_phase
from colocate.core.replay_buffer import ReplayBuffer
from colocate.core.residency import Residency, ordered
from colocate.core.settings import Settings
from colocate.core.swap_record import SwapRecord
from colocate.core.trajectory import ProtocolError
from colocate.core.types import Ending, MemorySample, SleepMode, Version

MEMORY_POLL_S = 0.1
"""How often memory is read again while a phase waits for it to fall."""

_OF_TRAINER = (Phase.TRAINER_WAKING, Phase.TRAINING, Phase.TRAINER_OFFLOADING)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended; ``error`` is one line for people."""

    status: Literal["completed", "stopped", "failed"]
    error: str | None = None
    signal: int | None = None


class Swapper:
    """Owns the phase, both versions, and the leases of the phase.

    What is on the device, and whether a phase may be left for it, is ``residency``'s to say.

    Attributes:
        incarnation: How often engine or trainer were started anew.
    """

    def __init__(
        self,
        settings: Settings,
        buffer: Buffer,
        requests: RequestQueue,
        books: Books,
        costs: CostModel,
    ) -> None:
        self.phase = Phase.STARTING
        self.now_s = 0.0
        self.progress_s = 0.0
        self.trainer_version = Version(0)
        self.engine_version = Version(0)
        self.residency = Residency(settings)
        self.outcome: Outcome | None = None
        self._settings = settings
        self._buffer = buffer
        self._requests = requests
        self._books = books
        self._costs = costs
        self._departure = Departure(settings, buffer, costs)
        self.evaluations = Evaluations(settings, requests, books.evaluations)
        self.replays = ReplayBuffer(settings)
        self.incarnation = 0
        self._entered_s = 0.0
        self._deadlines = Deadlines(settings)
        self._num_batches = 0
        self._leases: deque[Lease] = deque()
        self._parked = False
        self._signal: int | None = None
        self._weights_of: Version | None = None
        self.checkpoints = CheckpointSchedule(settings)
        self._expects = self._waits = False
        self._trainer_starts = True
        self._record = SwapRecord()

    @property
    def ledger(self) -> MemoryLedger:
        return self.residency.ledger

    @property
    def num_steps_left(self) -> int:
        return self._settings.steps - self.trainer_version

    @property
    def is_stopping(self) -> bool:
        return self._signal is not None

    # Beginning and end

    def start(self, event: RunStarted) -> list[Action]:
        self.trainer_version = self.engine_version = event.version
        self.checkpoints.begin(event.version, event.time_s)
        self._weights_of = event.version if event.version == 0 else None
        self._expects = event.version > 0 and self._settings.verify_every > 0
        self._entered_s = self.now_s = event.time_s
        self.evaluations.take_up(event.evaluated)
        return [
            *self._set_deadline(event.time_s, self._settings.start_timeout_s),
            StartPorts(version=event.version, expect=self._expects),
        ]

    def stop_requested(self, event: StopRequested) -> list[Action]:
        """Closes when the present phase ends; out of the rollout, when it is parked."""
        if self._signal is not None or self.phase is Phase.CLOSING:
            return []
        self._signal = event.signal
        self.outcome = Outcome(status="stopped", signal=event.signal)
        if self.phase is Phase.ROLLOUT:
            # Parked first: what requests in flight have sampled belongs into the checkpoint.
            self._num_batches, self._parked = 0, False
            actions = self.evaluations.cut("the run was stopped", is_void=True)
            actions += self._enter(Cause.SWAP_DUE, event.time_s)
            return [*actions, self._grace(event.time_s)]
        if self.phase is Phase.STARTING:
            # What a trainer starts from is on the disk already.
            return self._close(event.time_s, checkpoint=not self._trainer_starts)
        return [self._grace(event.time_s)]

    def _grace(self, time_s: float) -> SetTimer:
        return SetTimer(timer="grace", at_s=time_s + self._settings.grace_s)

    def faulted(self, event: Faulted) -> list[Action]:
        return self.fail(event.error, event.time_s)

    def fail(self, error: str, time_s: float, *, trainer_is_lost: bool = False) -> list[Action]:
        """Fails closed: nothing generates or trains after this.

        What was trained is saved, unless the trainer was at work: nobody knows its state then.
        """
        at_work = self.phase in (Phase.TRAINING, Phase.CLOSING) or self._is_starting_trainer
        is_there = not at_work and not trainer_is_lost
        unsaved = is_there and self.trainer_version > self.checkpoints.version
        self.outcome = Outcome(status="failed", error=error, signal=self._signal)
        cut = self.evaluations.cut("the run failed", is_void=True)
        self._leave(Cause.FAULT, time_s)
        return [*cut, CloseRun(checkpoint=unsaved, version=self.trainer_version)]

    def _close(self, time_s: float, *, checkpoint: bool = True) -> list[Action]:
        self._leave(Cause.CLOSE, time_s)
        makes_one = checkpoint and self.trainer_version > 0
        action = CloseRun(checkpoint=makes_one, version=self.trainer_version)
        limit_s = self._settings.grace_s if self.is_stopping else None
        return [*self._set_deadline(time_s, limit_s), action]

    @property
    def _trainer_rests(self) -> bool:
        """Whether no phase of the trainer's own is under way, but for memory to come free."""
        is_offloaded = self.phase is Phase.TRAINER_OFFLOADING and self._waits
        return is_offloaded or self.phase not in _OF_TRAINER

    @property
    def _is_starting_trainer(self) -> bool:
        return self.phase is Phase.STARTING and self._trainer_starts

    def saved(self, version: Version, time_s: float) -> list[Action]:
        """A checkpoint of the present swap is whole."""
        if self.phase is not Phase.TRAINER_OFFLOADING or version != self.trainer_version:
            raise ProtocolError(f"a checkpoint of version {version} was not asked for")
        since = self.checkpoints.written(version, time_s)
        return rate_by_reward(self._settings, self._books, since, version)

    # Rollout

    def consider_swap(self) -> list[Action]:
        """Asks the policy; enters the swap where it is due. An evaluation is waited for first."""
        if self.evaluations.holds_the_swap:
            return []
        if self.num_steps_left <= 0:  # what the run stayed for was its last evaluation
            return self._complete(self.now_s)
        num_batches, actions = self._departure.consider(
            self.trainer_version, now_s=self.now_s, rollout_started_s=self._entered_s
        )
        if not num_batches:
            return actions
        self._num_batches = num_batches
        self._parked = False
        self._record.predict(self._costs.prediction_of())
        return actions + self._enter(Cause.SWAP_DUE, self.now_s)

    def evaluation_ended(self, event: EvaluationEnded) -> list[Action]:
        is_saved = self.checkpoints.version == event.version > 0
        return self.evaluations.ended(event, present=self.trainer_version, is_saved=is_saved)

    def _complete(self, time_s: float) -> list[Action]:
        self.outcome = Outcome(status="completed")
        return self._close(time_s, checkpoint=False)

    def request_returned(self, time_s: float) -> list[Action]:
        """What waits for requests in flight may be waiting for this one."""
        if self.phase is Phase.PARKING:
            return self._try_end_parking(time_s)
        return self._try_end_start(time_s) if self.phase is Phase.STARTING else []

    def _try_end_start(self, time_s: float) -> list[Action]:
        """A new engine wakes when all that the old one owed has come back, as aborted."""
        if not self._parked or self._requests.num_inflight:
            return []
        return self._try_leave(self.ledger.last, time_s)

    def _try_end_parking(self, time_s: float) -> list[Action]:
        if not self._parked or self._requests.num_inflight:
            return []
        if self.is_stopping:
            return self._close(time_s)
        leases, actions = replace_flat_groups(
            self._buffer,
            self.replays,
            self._books,
            self._buffer.lease(self.trainer_version, self._num_batches, time_s),
            time_s,
        )
        self._leases.extend(leases)
        num_steps_left = self.num_steps_left - len(leases)
        actions += redundancy.cancel_spare_groups(
            self._buffer,
            self._requests,
            self._books,
            self._settings,
            num_steps_left=num_steps_left,
            time_s=time_s,
        )
        if num_steps_left:
            next_version = Version(self.trainer_version + len(leases))
            actions += crossing.retire(
                self._buffer, self._books, self._settings, next_version, time_s
            )
        crossing.count_carried(self._buffer, self._books)
        actions.append(self.residency.adopt_plan())
        return actions + self._enter(Cause.DONE, time_s)

    # Phases

    def phase_ended(self, event: PhaseEnded) -> list[Action]:
        if event.phase is not self.phase or self.phase in (Phase.ROLLOUT, Phase.TRAINING):
            raise ProtocolError(f"phase {event.phase} cannot end: the run is in {self.phase}")
        if self.phase is Phase.PUBLISHING and event.version != self.trainer_version:
            raise ProtocolError(
                f"the engine reports version {event.version} after version "
                f"{self.trainer_version} was published"
            )
        if self.phase is Phase.CLOSING:
            self.ledger.observe(event.peak, event.memory)
            self._leave(Cause.DONE, event.time_s)
            return []
        if contradiction := self.residency.phase_ended(event):
            return self.fail(f"{contradiction}. {self._describe_memory()}", event.time_s)
        self._record.see(event.peak, event.memory)
        if self.phase is Phase.PARKING:
            self._parked = True
            return self._try_end_parking(event.time_s)
        if self.phase is Phase.STARTING:
            self._parked = True
            return self._try_end_start(event.time_s)
        if self.phase is Phase.SLEEPING and self.residency.mode is SleepMode.LEVEL_2:
            self._weights_of = None
        if self.phase is Phase.PUBLISHING:
            self.engine_version = self._weights_of = self.trainer_version
        return self._try_leave(event.memory, event.time_s)

    def memory_sampled(self, event: MemorySampled) -> list[Action]:
        self.ledger.observe(event.memory)
        return self._try_leave(event.memory, event.time_s) if self._waits else []

    def parts_reported(self, event: PartsReported) -> list[Action]:
        self.ledger.report(event.held)
        return []

    def relieved(self, event: Relieved) -> list[Action]:
        if not self._waits:
            raise ProtocolError(f"nothing was to be relieved: the run is in {self.phase}")
        self.residency.relieved(event)
        if self.residency.mode is SleepMode.LEVEL_2:
            self._weights_of = None
        return self._try_leave(event.memory, event.time_s)

    def _try_leave(self, memory: MemorySample | None, time_s: float) -> list[Action]:
        """Leaves the phase if what it is for is true as measured; else measures or relieves."""
        if text := self.residency.host_overdraft(self.phase, memory):
            return self.fail(text, time_s)
        if not self.residency.is_achieved(self.phase, memory):
            self._waits = True
            remedy = self.residency.remedy(self.phase, time_s)
            return [remedy or SampleMemory(at_s=time_s + MEMORY_POLL_S)]
        self._waits = False
        actions = self._warn(*self.residency.leave(self.phase, memory, time_s))
        if self.phase is Phase.KV_WAKING:
            actions += self._close_swap(time_s)
            evaluates = self.evaluations.is_due(self.trainer_version)
            if self.num_steps_left <= 0 and not evaluates and not self.is_stopping:
                return actions + self._complete(time_s)
        if self.is_stopping:
            return actions + self._close(time_s)
        if self.phase is Phase.STARTING and self.ledger.overdraft(memory):
            return actions + self.fail(self._explain_overdraft(), time_s)
        starts = self.phase is Phase.STARTING
        resumes = starts and (self.trainer_version > 0 or self.incarnation > 0)
        return actions + self._enter(Cause.RESUMED if resumes else Cause.DONE, time_s)

    def _close_swap(self, time_s: float) -> list[Action]:
        """The swap's line in the journal; a resume passes here too, and is no swap."""
        self._expects = False
        if not self._num_batches:
            return []
        self._books.swaps += 1
        self._record.left(self.phase, time_s - self._entered_s)
        return [self._record.close(self._books.swaps, self.engine_version, self.residency)]

    def batch_trained(self, event: BatchTrained) -> list[Action]:
        lease = self._buffer.leased(event.batch)
        if self.phase is not Phase.TRAINING or lease.batch != self._leases[0].batch:
            raise ProtocolError(f"batch {event.batch} is not the one that is being trained")
        check_acknowledgement(self._buffer, lease, event)
        self._leases.popleft()
        spans = self._buffer.trained_spans(lease)
        rewards = [self._buffer.rewards_of(group) for group in lease.groups]
        self._books.train(lease.version, spans, rewards, lease.replays)
        trained = self._buffer.acknowledge(lease, event.time_s)
        next_version = Version(event.version + len(self._leases))
        actions = self.replays.acknowledge(lease.batch, lease.replays, trained, next_version)
        if text := self._books.mismatch.observe(event.metrics, event.version):
            actions += self._warn(Warn(message=text))
        for trajectory in trained:
            self._books.end(Ending.TRAINED, "", 0)
            actions.append(
                EndTrajectory(
                    trajectory=trajectory.id,
                    ending=Ending.TRAINED,
                    reason="",
                    keeps_content=trajectory.group in self.replays,
                )
            )
        self.trainer_version = event.version
        self.residency.trained(event.peak, event.memory)
        self._record.see(event.peak, event.memory)
        if self.is_stopping:
            return actions + self._close(event.time_s)
        if self._leases:
            return actions + self._train_next(event.time_s)
        return actions + self._enter(Cause.DONE, event.time_s)

    def _train_next(self, time_s: float) -> list[Action]:
        lease = self._leases[0]
        self._buffer.check_bound(lease)
        self.replays.check_bound(lease.version, lease.replays)
        train = Train(
            batch=lease.batch,
            version=lease.version,
            trajectories=lease.trajectories,
            replays=tuple(replay.lease for replay in lease.replays),
        )
        return [*self._set_deadline(time_s, self._settings.training_timeout_s), train]

    def _warn(self, *warnings: Warn) -> list[Action]:
        self._books.warnings += [warning.message for warning in warnings]
        return [*warnings]

    # Moving between phases

    def _leave(self, cause: Cause, time_s: float) -> None:
        entered = next_phase(self.phase, cause)
        self._books.enter_phase(self.phase, entered, self._entered_s, time_s)
        self._record.left(self.phase, time_s - self._entered_s)
        if entered is Phase.PARKING:
            self._record.begin()
        self.phase = entered
        self._entered_s = self.progress_s = self.now_s = time_s
        self._deadlines.enter_phase()
        self._waits = False
        self.residency.enter(entered, time_s)

    def _enter(self, cause: Cause, time_s: float) -> list[Action]:
        """Enters the next phase; one in which nothing is to be done is passed through."""
        self._leave(cause, time_s)
        if self.phase is Phase.ROLLOUT:
            evaluation = self.evaluations.begin(self.engine_version, time_s)
            return [self._deadlines.watch_idling(time_s), *evaluation]
        if self.phase is Phase.TRAINING:
            return self._train_next(time_s)
        action = self._action_of_phase()
        if action is None:
            return self._enter(Cause.DONE, time_s)
        self._waits = isinstance(action, SampleMemory)
        writes = isinstance(action, OffloadTrainer) and action.checkpoint
        limit_s = self._settings.training_timeout_s if writes else None
        return [*self._set_deadline(time_s, limit_s), action]

    def _action_of_phase(self) -> Action | None:
        residency = self.residency
        match self.phase:
            case Phase.PARKING:
                return Park()
            case Phase.SLEEPING:
                return residency.sleep(self.now_s)
            case Phase.TRAINER_WAKING:
                return LoadTrainer() if residency.evicted else None
            case Phase.TRAINER_OFFLOADING:
                self._expects = self._verification_is_due
                return residency.offload(
                    self.trainer_version,
                    checkpoint=self._checkpoint_is_due,
                    expect=self._expects,
                )
            case Phase.WEIGHTS_WAKING:
                return WakeWeights() if residency.weights_are_asleep else None
            case Phase.PUBLISHING:
                # Weights that the engine has already are not sent again.
                if self._weights_of == self.trainer_version:
                    return None
                return Publish(
                    version=self.trainer_version,
                    offload=ordered(residency.plan.offload_after_push),
                )
            case _:
                residency.check_exclusion()
                asleep = residency.mode is not SleepMode.PAUSE
                return WakeKv(asleep=asleep, verify=self._expects)

    @property
    def _checkpoint_is_due(self) -> bool:
        version = self.trainer_version
        is_rated = self._settings.keep_best and self.evaluations.is_due(version)
        return is_rated or self.checkpoints.is_due(version, self._num_batches, self.now_s)

    @property
    def _verification_is_due(self) -> bool:
        """The first swap's, and then every so many: what is wrong in kind shows at once."""
        every = self._settings.verify_every
        return every > 0 and self._books.swaps % every == 0

    # Time

    def _set_deadline(self, time_s: float, timeout_s: float | None = None) -> list[Action]:
        """A deadline for the phase, or for the step of it that begins now."""
        return [self._deadlines.set(time_s, timeout_s)]

    def stood_still(self, event: TimerFired) -> list[Action] | None:
        """What is set anew where the driver itself was stopped beyond a deadline.

        Who had no chance to be heard in time gets the whole of it once more. None: it was not so.
        """
        if not self._deadlines.stood_still(event):
            return None
        if self.phase is Phase.ROLLOUT:
            self.progress_s = event.time_s
            return [self._deadlines.watch_idling(event.time_s)]
        return self._set_deadline(event.time_s, self._deadlines.limit_s)

    def timer_fired(self, event: TimerFired) -> list[Action]:
        if self._deadlines.is_of_phase(event) and self.phase is not Phase.ROLLOUT:
            return self.fail(self._explain_deadline(), event.time_s)
        if event.timer == "grace" and self.phase is not Phase.CLOSING:
            if self._trainer_rests and self.phase is not Phase.PUBLISHING:
                return self._close(event.time_s)  # without what a stuck engine has sampled
            self.outcome = Outcome(
                status="stopped",
                signal=self._signal,
                error=f"no checkpoint: {self.phase} did not end within supervision.grace_s = "
                f"{self._settings.grace_s} s of the signal",
            )
            return self._close(event.time_s, checkpoint=False)
        if self._deadlines.is_of_idling(event) and self.phase is Phase.ROLLOUT:
            due_s = self.progress_s + self._settings.idle_timeout_s
            if event.time_s >= due_s:
                return self.fail(self._explain_idling(), event.time_s)
            return [self._deadlines.watch_idling(self.progress_s)]
        return self.evaluations.timer_fired(event)

    def _explain_deadline(self) -> str:
        if self.phase is Phase.PARKING:
            waits = f" It waits for {self._requests.num_inflight} requests in flight."
        else:
            waits = self.residency.explain_wait(self.phase)
        return f"{self.phase} has not ended by its deadline.{waits} {self._describe_memory()}"

    def _describe_memory(self) -> str:
        return f"Memory: {self.ledger.describe()}"

    def _explain_overdraft(self) -> str:
        return (
            "engine and offloaded trainer together hold more than memory.budget_bytes: raise it, "
            f"or lower inference.kv_cache_memory_bytes. {self._describe_memory()}"
        )

    def _explain_idling(self) -> str:
        counts: dict[str, int] = {}
        for trajectory in self._buffer:
            counts[trajectory.state] = counts.get(trajectory.state, 0) + 1
        states = ", ".join(f"{n} {state}" for state, n in sorted(counts.items())) or "none"
        return (
            f"nothing has happened in the rollout for {self._settings.idle_timeout_s} s; "
            f"trajectories: {states}; requests in flight: {self._requests.num_inflight}"
        )
