"""The swap protocol: which phase follows, what it must have achieved, and when it has failed."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from colocate.core import crossing
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
    Sleep,
    StartPorts,
    Train,
    WakeKv,
    WakeWeights,
)
from colocate.core.admission import RequestQueue
from colocate.core.books import Books
from colocate.core.buffer import Buffer, Lease
from colocate.core.events import (
    BatchTrained,
    Faulted,
    MemorySampled,
    PhaseEnded,
    PromptCursor,
    RunStarted,
    StopRequested,
    TimerFired,
)
from colocate.core.memory import MemoryLedger
from colocate.core.phases import Cause, Phase, next_phase
from colocate.core.settings import Settings
from colocate.core.staleness import max_swap_interval
from colocate.core.swap_policy import RolloutView, Stay, make_policy
from colocate.core.trajectory import ProtocolError
from colocate.core.types import Ending, MemorySample, Version

MEMORY_POLL_S = 0.1
"""How often memory is read again while a phase waits for it to fall."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run ended; ``error`` is one line for people."""

    status: Literal["completed", "stopped", "failed"]
    error: str | None = None
    signal: int | None = None


class Swapper:
    """Owns the phase, both versions, the leases of the phase, and the memory ledger."""

    def __init__(
        self, settings: Settings, buffer: Buffer, requests: RequestQueue, books: Books
    ) -> None:
        self.phase = Phase.STARTING
        self.now_s = 0.0
        self.progress_s = 0.0
        self.trainer_version = Version(0)
        self.engine_version = Version(0)
        self.ledger = MemoryLedger(margin_bytes=settings.margin_bytes)
        self.outcome: Outcome | None = None
        self._settings = settings
        self._buffer = buffer
        self._requests = requests
        self._books = books
        self._policy = make_policy(settings)
        self._cursor: Callable[[], PromptCursor] = PromptCursor
        self._entered_s = 0.0
        self._num_entries = 0
        self._level: Literal[0, 1, 2] = 0
        self._num_batches = 0
        self._leases: deque[Lease] = deque()
        self._trainer_is_loaded = False
        self._parked = False
        self._wanted_since_s: float | None = None
        self._asked_until_s: float | None = None
        self._signal: int | None = None

    @property
    def num_steps_left(self) -> int:
        return self._settings.steps - self.trainer_version

    @property
    def is_stopping(self) -> bool:
        return self._signal is not None

    # Beginning and end

    def start(self, event: RunStarted, cursor: Callable[[], PromptCursor]) -> list[Action]:
        self._cursor = cursor
        self.trainer_version = self.engine_version = event.version
        self._entered_s = self.now_s = event.time_s
        deadline = event.time_s + self._settings.start_timeout_s
        return [
            SetTimer(timer=self._deadline_name, at_s=deadline),
            StartPorts(version=event.version),
        ]

    def stop_requested(self, event: StopRequested) -> list[Action]:
        """Closes at once where nothing is half done; otherwise when the present phase ends."""
        if self._signal is not None or self.phase is Phase.CLOSING:
            return []
        self._signal = event.signal
        self.outcome = Outcome(status="stopped", signal=event.signal)
        if self.phase is Phase.ROLLOUT:
            return self._close(event.time_s)
        if self.phase is Phase.STARTING:  # what it resumes from is on the disk already
            return self._close(event.time_s, checkpoint=False)
        return [SetTimer(timer="grace", at_s=event.time_s + self._settings.grace_s)]

    def faulted(self, event: Faulted) -> list[Action]:
        return self.fail(event.error, event.time_s)

    def fail(self, error: str, time_s: float) -> list[Action]:
        """Fails closed: nothing generates or trains after this."""
        self.outcome = Outcome(status="failed", error=error, signal=self._signal)
        self._leave(Cause.FAULT, time_s)
        return [CloseRun(checkpoint=None, version=self.trainer_version)]

    def _close(self, time_s: float, *, checkpoint: bool = True) -> list[Action]:
        self._leave(Cause.CLOSE, time_s)
        makes_one = checkpoint and self.trainer_version > 0
        action = CloseRun(
            checkpoint=self._cursor() if makes_one else None, version=self.trainer_version
        )
        limit_s = self._settings.grace_s if self.is_stopping else None
        return [*self._set_deadline(time_s, limit_s), action]

    # Rollout

    def consider_swap(self) -> list[Action]:
        """Asks the policy, unless a hold for partials about to expire is still running."""
        settings = self._settings
        max_batches = min(max_swap_interval(settings.max_staleness), self.num_steps_left)
        view = RolloutView(
            time_s=self.now_s,
            rollout_started_s=self._entered_s,
            num_ready_batches=len(self._buffer.plan(self.trainer_version, max_batches)),
            num_unfinished=self._buffer.num_unfinished,
            num_steps_left=self.num_steps_left,
            max_batches=max_batches,
        )
        decision = self._policy.decide(view)
        if isinstance(decision, Stay):
            self._wanted_since_s = None
            return self._ask_again(decision.until_s)
        if not 1 <= decision.num_batches <= view.num_ready_batches:
            raise ProtocolError(f"the policy wants {decision.num_batches} batches of {view}")
        if hold_until_s := self._hold(decision.num_batches):
            return self._ask_again(hold_until_s)
        self._num_batches = decision.num_batches
        self._wanted_since_s = None
        self._parked = False
        return [*self._enter(Cause.SWAP_DUE, self.now_s)]

    def _ask_again(self, at_s: float | None) -> list[Action]:
        if at_s is None or at_s == self._asked_until_s:
            return []
        self._asked_until_s = at_s
        return [SetTimer(timer="swap", at_s=at_s)]

    def _hold(self, num_batches: int) -> float | None:
        """Until when the swap is held for unfinished work that it would expire, if at all."""
        if num_batches >= self.num_steps_left:
            return None  # nothing is trained after it, so nothing expires
        grace_s = self._settings.expiry_grace_s
        if self._wanted_since_s is None:
            self._wanted_since_s = self.now_s
        until_s = self._wanted_since_s + grace_s
        if self.now_s >= until_s:
            return None
        next_version = Version(self.trainer_version + num_batches)
        stale = self._buffer.stale_groups(next_version)
        unfinished = any(m.is_unfinished for g in stale for m in self._buffer.members(g))
        return until_s if unfinished else None

    def request_returned(self, time_s: float) -> list[Action]:
        return self._try_end_parking(time_s) if self.phase is Phase.PARKING else []

    def _try_end_parking(self, time_s: float) -> list[Action]:
        if not self._parked or self._requests.num_inflight:
            return []
        if self.is_stopping:
            return self._close(time_s)
        leases = self._buffer.lease(self.trainer_version, self._num_batches, time_s)
        self._leases.extend(leases)
        actions: list[Action] = []
        if self.num_steps_left > len(leases):
            next_version = Version(self.trainer_version + len(leases))
            actions += crossing.retire(
                self._buffer, self._books, self._settings, next_version, time_s
            )
        crossing.count_carried(self._buffer, self._books)
        self._level = self.ledger.sleep_level(self._settings.sleep)
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
        self.ledger.observe(event.peak, event.memory)
        if self.phase is Phase.CLOSING:
            self._leave(Cause.DONE, event.time_s)
            return []
        if self.phase is Phase.PARKING:
            self._parked = True
            self.ledger.awake = event.memory or self.ledger.awake
            return self._try_end_parking(event.time_s)
        if self.phase is Phase.PUBLISHING:
            self.engine_version = self.trainer_version
        if self.phase is Phase.TRAINER_WAKING:
            self._trainer_is_loaded = True
        if self.phase is Phase.TRAINER_OFFLOADING:
            self._trainer_is_loaded = self._level == 0
        return self._try_leave(event.memory, event.time_s)

    def memory_sampled(self, event: MemorySampled) -> list[Action]:
        self.ledger.observe(event.memory)
        if not self._waits_for_memory:
            return []
        return self._try_leave(event.memory, event.time_s)

    def _try_leave(self, memory: MemorySample | None, time_s: float) -> list[Action]:
        """Leaves the phase if what it is for is true as measured; else measures again."""
        if not self._is_achieved(memory):
            return [SampleMemory(at_s=time_s + MEMORY_POLL_S)]
        if self.phase is Phase.SLEEPING:
            self.ledger.asleep = memory or self.ledger.asleep
        if self.phase is Phase.KV_WAKING:
            self.ledger.woken = memory or self.ledger.woken
            self._books.swaps += self._num_batches > 0
            if self.num_steps_left <= 0 and not self.is_stopping:
                self.outcome = Outcome(status="completed")
                return self._close(time_s, checkpoint=False)
        if self.is_stopping:
            return self._close(time_s)
        if self.phase is Phase.STARTING and self.ledger.overdraft(memory):
            return self.fail(self._explain_overdraft(), time_s)
        resumes = self.phase is Phase.STARTING and self.trainer_version > 0
        return self._enter(Cause.RESUMED if resumes else Cause.DONE, time_s)

    @property
    def _waits_for_memory(self) -> bool:
        return self.phase in (Phase.SLEEPING, Phase.TRAINER_OFFLOADING)

    def _is_achieved(self, memory: MemorySample | None) -> bool:
        if self.phase is Phase.SLEEPING:
            return self.ledger.has_slept(memory)
        if self.phase is Phase.TRAINER_OFFLOADING and self._level > 0:
            return self.ledger.engine_fits(memory)
        return True

    def batch_trained(self, event: BatchTrained) -> list[Action]:
        lease = self._buffer.leased(event.batch)
        if self.phase is not Phase.TRAINING or lease is not self._leases[0]:
            raise ProtocolError(f"batch {event.batch} is not the one that is being trained")
        check_acknowledgement(self._buffer, lease, event)
        spans = self._buffer.trained_spans(lease)
        trained = self._buffer.acknowledge(lease, event.time_s)
        rewards = [t.reward for t in trained if t.reward is not None]
        self._books.train(lease.version, spans, sum(rewards) / len(rewards))
        self._books.compare_engines(event.metrics)
        actions: list[Action] = []
        for trajectory in trained:
            self._books.end(Ending.TRAINED, "", 0)
            actions.append(
                EndTrajectory(trajectory=trajectory.id, ending=Ending.TRAINED, reason="")
            )
        self._leases.popleft()
        self.trainer_version = event.version
        self.ledger.observe_training(event.peak, event.memory)
        if self.is_stopping:
            return actions + self._close(event.time_s)
        if self._leases:
            return actions + self._train_next(event.time_s)
        return actions + self._enter(Cause.DONE, event.time_s)

    def _train_next(self, time_s: float) -> list[Action]:
        lease = self._leases[0]
        self._buffer.check_bound(lease)
        return [
            *self._set_deadline(time_s, self._settings.training_timeout_s),
            Train(batch=lease.batch, version=lease.version, trajectories=lease.trajectories),
        ]

    # Moving between phases

    def _leave(self, cause: Cause, time_s: float) -> None:
        entered = next_phase(self.phase, cause)
        self._books.enter_phase(self.phase, entered, self._entered_s, time_s)
        self.phase = entered
        self._entered_s = self.progress_s = self.now_s = time_s
        self._num_entries += 1

    def _enter(self, cause: Cause, time_s: float) -> list[Action]:
        """Enters the next phase; one in which nothing is to be done is passed through."""
        self._leave(cause, time_s)
        if self.phase is Phase.ROLLOUT:
            return [SetTimer(timer=self._idle_name, at_s=time_s + self._settings.idle_timeout_s)]
        if self.phase is Phase.TRAINING:
            return self._train_next(time_s)
        action = self._action_of_phase()
        if action is None:
            return self._enter(Cause.DONE, time_s)
        return [*self._set_deadline(time_s), action]

    def _action_of_phase(self) -> Action | None:
        asleep = self._level > 0
        match self.phase:
            case Phase.PARKING:
                return Park()
            case Phase.SLEEPING:
                return Sleep(level=self._level) if self._level else None
            case Phase.TRAINER_WAKING:
                return None if self._trainer_is_loaded else LoadTrainer()
            case Phase.TRAINER_OFFLOADING:
                cursor = self._cursor() if self._checkpoint_is_due else None
                if not asleep and cursor is None:
                    return None
                return OffloadTrainer(
                    offload=asleep, checkpoint=cursor, version=self.trainer_version
                )
            case Phase.WEIGHTS_WAKING:
                return WakeWeights() if asleep else None
            case Phase.PUBLISHING:
                return Publish(version=self.trainer_version)
            case _:
                return WakeKv(asleep=asleep)

    @property
    def _checkpoint_is_due(self) -> bool:
        every = self._settings.checkpoint_every_steps
        began = self.trainer_version - self._num_batches
        crossed = bool(every) and self.trainer_version // every > began // every
        return crossed or self.num_steps_left == 0

    # Time

    @property
    def _deadline_name(self) -> str:
        return f"deadline:{self._num_entries}"

    @property
    def _idle_name(self) -> str:
        return f"idle:{self._num_entries}"

    def _set_deadline(self, time_s: float, timeout_s: float | None = None) -> list[Action]:
        """A deadline for the phase, or for the step of it that begins now."""
        self._num_entries += 1
        limit_s = self._settings.phase_timeout_s if timeout_s is None else timeout_s
        return [SetTimer(timer=self._deadline_name, at_s=time_s + limit_s)]

    def timer_fired(self, event: TimerFired) -> list[Action]:
        if event.timer == self._deadline_name and self.phase is not Phase.ROLLOUT:
            return self.fail(self._explain_deadline(), event.time_s)
        if event.timer == "grace" and self.phase is not Phase.CLOSING:
            self.outcome = Outcome(
                status="stopped",
                signal=self._signal,
                error=f"no checkpoint: {self.phase} did not end within supervision.grace_s = "
                f"{self._settings.grace_s} s of the signal",
            )
            return self._close(event.time_s, checkpoint=False)
        if event.timer == self._idle_name and self.phase is Phase.ROLLOUT:
            due_s = self.progress_s + self._settings.idle_timeout_s
            if event.time_s >= due_s:
                return self.fail(self._explain_idling(), event.time_s)
            return [SetTimer(timer=self._idle_name, at_s=due_s)]
        return []

    def _explain_deadline(self) -> str:
        waits_for = ""
        if self.phase is Phase.PARKING:
            waits_for = f" It waits for {self._requests.num_inflight} requests in flight."
        elif self.phase is Phase.SLEEPING and not self._is_achieved(self.ledger.last):
            waits_for = " It waits for the engine to hold less than when it was awake."
        elif self.phase is Phase.TRAINER_OFFLOADING and not self._is_achieved(self.ledger.last):
            wanted = self.ledger.wanted_by_engine(self.ledger.last) or 0
            waits_for = (
                f" It waits for {wanted >> 20} MiB free, so that the engine can wake: lower "
                "inference.kv_cache_memory_bytes, or raise memory.budget_bytes if it is set."
            )
        return (
            f"{self.phase} has not ended by its deadline.{waits_for} "
            f"Memory: {self.ledger.describe()}"
        )

    def _explain_overdraft(self) -> str:
        return (
            "engine and offloaded trainer together hold more than memory.budget_bytes: raise it, "
            f"or lower inference.kv_cache_memory_bytes. Memory: {self.ledger.describe()}"
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
