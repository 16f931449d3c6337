"""The one arbiter: facts in, commands out; nothing else changes the state of a run.

        prompts --admit--> [ACTING] --turn ready--> [QUEUED] --gate--> [GENERATING] --+
                              ^                                                       |
                              +------------------ generated --------------------------+
        [ACTING] --scored--> [FINISHED] --lease--> [LEASED] --acknowledged--> trained

    The gate is open in ROLLOUT only. Who waits for whom:
      a queued trajectory   waits for the gate: ROLLOUT, and fewer than max_requests in flight;
      a swap                waits for its policy: enough complete groups within the bound; and for
                            an evaluation, of which the engine holds one version until it is over;
      PARKING               waits for every request in flight to come back, whole or aborted;
      SLEEPING              waits for measured memory to have fallen;
      TRAINER_OFFLOADING    waits for measured memory that the engine fits into;
      every phase           waits no longer than its deadline, then the run fails with the ledger.
    Environments wait for nobody: they answer in any phase.

The swap protocol is in ``colocate.core.swap``; this module holds what concerns trajectories.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from colocate.core import redundancy, resumption
from colocate.core.actions import (
    Action,
    EndTrajectory,
    StartTrajectory,
    SubmitRequest,
    Warn,
)
from colocate.core.admission import PromptStream, RequestQueue
from colocate.core.barren_groups import BarrenGroups
from colocate.core.books import Books
from colocate.core.buffer import Buffer
from colocate.core.buffer_snapshot import BufferSnapshot
from colocate.core.cost import CostModel
from colocate.core.events import (
    BatchTrained,
    CheckpointWritten,
    EngineLost,
    EpisodeNotResumed,
    EpisodeResumed,
    EvaluationEnded,
    EvaluationRequestEnded,
    EvaluationTurnReady,
    Event,
    Faulted,
    MemorySampled,
    PartsReported,
    PhaseEnded,
    PortEvent,
    PromptCursor,
    Relieved,
    RequestEnded,
    Restored,
    RunStarted,
    StopRequested,
    TimerFired,
    TrainerLost,
    TrajectoryFinished,
    TrajectoryLost,
    TurnReady,
)
from colocate.core.flat_groups import FlatGroupFilter
from colocate.core.loss_cap import LossCap
from colocate.core.mismatch import MismatchBook
from colocate.core.phases import ENDS, Phase
from colocate.core.recovery import Recovery
from colocate.core.resumed_tally import ResumedTally
from colocate.core.settings import Settings
from colocate.core.swap_recovery import RecoverableSwapper
from colocate.core.trajectory import ProtocolError, State, Trajectory, Trigger
from colocate.core.types import Ending, FinishReason, TrajectoryId

_OF_WORK = frozenset(
    {
        TurnReady,
        RequestEnded,
        TrajectoryFinished,
        TrajectoryLost,
        EpisodeResumed,
        EpisodeNotResumed,
        BatchTrained,
        CheckpointWritten,
        Relieved,
        EvaluationTurnReady,
        EvaluationRequestEnded,
    }
)

_MAY_BRING_A_SWAP = frozenset(
    {TrajectoryFinished, TrajectoryLost, TimerFired, PhaseEnded, EvaluationEnded}
)

_INVALID = "its environment called it invalid"


class Scheduler:
    """``handle`` one event at a time, in the order of time; carry out what it returns.

    An event that contradicts the state raises ``ProtocolError`` (or ``IllegalTransition``) and
    changes nothing.
    """

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.buffer = Buffer(
            group_size=settings.group_size,
            groups_per_step=settings.groups_per_step,
            max_staleness=settings.max_staleness,
            redundant_per_group=settings.redundant_per_group,
        )
        self.books = Books(
            bound=settings.max_staleness, mismatch=MismatchBook(settings.mismatch_warn)
        )
        self.requests = RequestQueue(settings.max_requests)
        self.costs = CostModel()
        self.swapper = RecoverableSwapper(
            settings, self.buffer, self.requests, self.books, self.costs
        )
        self.recovery = Recovery(
            settings, self.swapper, self.buffer, self.requests, self.books, self.costs
        )
        self._loss_cap = LossCap(settings.max_filtered_fraction)
        self._barren_groups = BarrenGroups(settings.max_barren_groups)
        self._flat_groups = FlatGroupFilter(settings, self.buffer, self.books)
        self._prompts: PromptStream | None = None
        self._handlers: dict[type[Event], Callable[[Any], list[Action]]] = {
            RunStarted: self._run_started,
            Restored: self._restored,
            EpisodeResumed: self._episode_resumed,
            EpisodeNotResumed: self._episode_not_resumed,
            TurnReady: self._turn_ready,
            RequestEnded: self._request_ended,
            TrajectoryFinished: self._trajectory_finished,
            TrajectoryLost: self._trajectory_lost,
            BatchTrained: self.swapper.batch_trained,
            PhaseEnded: self.swapper.phase_ended,
            MemorySampled: self.swapper.memory_sampled,
            Relieved: self.swapper.relieved,
            PartsReported: self.swapper.parts_reported,
            EvaluationTurnReady: self._evaluation_turn_ready,
            EvaluationRequestEnded: self._evaluation_request_ended,
            EvaluationEnded: self.swapper.evaluation_ended,
            CheckpointWritten: self.recovery.checkpoint_written,
            EngineLost: self.recovery.engine_lost,
            TrainerLost: self.recovery.trainer_lost,
            TimerFired: self._timer_fired,
            StopRequested: self.swapper.stop_requested,
            Faulted: self.swapper.faulted,
        }

    @property
    def phase(self) -> Phase:
        return self.swapper.phase

    def handle(self, event: Event) -> list[Action]:
        """Takes in one fact and decides.

        Raises:
            ProtocolError: the fact contradicts what is known; nothing was changed.
            IllegalTransition: likewise, of phases.
        """
        if self._comes_too_late(event):
            self.books.late_events += 1
            return []
        if (self._prompts is None) is not isinstance(event, RunStarted):
            raise ProtocolError("a run begins with RunStarted, once")
        if event.time_s < self.swapper.now_s:
            raise ProtocolError(f"time runs backwards: {event.time_s} after {self.swapper.now_s}")
        actions = self._handlers[type(event)](event)
        self.swapper.now_s = event.time_s
        self.costs.learn(event)
        self.costs.follow(actions, event.time_s)
        if self.phase not in ENDS and self.phase is not Phase.CLOSING:
            further = self._go_on(event)
            self.costs.follow(further, event.time_s)
            actions += further
        self.recovery.observe(event, actions)
        return actions

    def summary(self) -> dict[str, Any]:
        """The part of ``summary.json`` that follows from decisions; see DESIGN's contract."""
        ledger = self.swapper.ledger
        return {
            **self.books.summary(num_resident=len(self.buffer)),
            "versions": {
                "trainer": self.swapper.trainer_version,
                "engine": self.swapper.engine_version,
            },
            "memory": {
                "peak": ledger.peak_used or None,
                "awake": ledger.awake.used if ledger.awake else None,
                "asleep": ledger.asleep.used if ledger.asleep else None,
                "trainer_peak": ledger.trainer_peak,
                "ledger": ledger.table(),
            },
            "recoveries": self.recovery.summary(),
            "warnings": list(self.books.warnings),
        }

    @property
    def cursor(self) -> PromptCursor:
        """Where the prompt stream stands; what it has given out and is resident is not in it."""
        return PromptCursor() if self._prompts is None else self._prompts.cursor

    def snapshot(self) -> BufferSnapshot:
        """What a checkpoint holds of the buffer; ``Restored`` gives it to a new life."""
        return BufferSnapshot(
            residents=self.buffer.snapshot(), replays=self.swapper.replays.snapshot()
        )

    def _comes_too_late(self, event: Event) -> bool:
        """A run that closes heeds no work any more, nor a phase that it did not wait for.

        Nor does anybody heed what engine or trainer answered before they were started anew. What
        an evaluation has found, cut as it may be, is heeded as long as there is a run.
        """
        if isinstance(event, EvaluationEnded):
            return self.phase is Phase.CLOSED
        if isinstance(event, PortEvent) and event.incarnation != self.swapper.incarnation:
            return True
        if self.phase is not Phase.CLOSING:
            return self.phase in ENDS
        if isinstance(event, PhaseEnded):
            return event.phase is not Phase.CLOSING
        return type(event) in _OF_WORK

    # What is always tried, after every event

    def _go_on(self, event: Event) -> list[Action]:
        """Admits what the bound allows, asks the policy, and opens the gate."""
        actions = self._admit()
        if self.phase is Phase.ROLLOUT and type(event) in _MAY_BRING_A_SWAP:
            actions += self.swapper.consider_swap()
        if self.phase is Phase.ROLLOUT:
            actions += self.swapper.evaluations.submit()
            actions += self._submit()
        return actions

    def _admit(self) -> list[Action]:
        if self._prompts is None or self.phase is Phase.STARTING or self.swapper.is_stopping:
            return []
        if self.swapper.num_steps_left <= 0:
            return []
        actions: list[Action] = []
        while self._has_room_for_group() and self._needs_group():
            actions += [self._start(t) for t in self.buffer.admit(self._prompts.draw())]
        return actions

    def _has_room_for_group(self) -> bool:
        settings = self.settings
        return self.buffer.num_groups < settings.max_resident_groups + settings.redundant_groups

    def _needs_group(self) -> bool:
        """Whether the groups at hand do not suffice for the steps that are left.

        Not every one of them counts: of many that are about to become too old, only as many can
        be trained as fit into the steps that begin before that.
        """
        steps_left = self.swapper.num_steps_left
        wanted = self.settings.groups_per_step * steps_left + self.settings.redundant_groups
        if self.buffer.num_groups < wanted:
            return True
        version = self.swapper.trainer_version
        return self.buffer.num_fillable_batches(version, steps_left) < steps_left

    def _start(self, trajectory: Trajectory) -> StartTrajectory:
        self.books.admitted += 1
        return StartTrajectory(trajectory=trajectory.id, group=trajectory.group)

    def _submit(self) -> list[Action]:
        actions: list[Action] = []
        if self.swapper.num_steps_left <= 0:  # nothing would be trained of it
            return actions
        while trajectory := self.requests.next(self.buffer):
            request = self.requests.submit(trajectory)
            trajectory.move(Trigger.SUBMITTED, self.swapper.now_s)
            actions.append(SubmitRequest(trajectory=trajectory.id, request=request))
        return actions

    # A run's beginning

    def _run_started(self, event: RunStarted) -> list[Action]:
        self._prompts = self.recovery.prompts = PromptStream(event.cursor)
        actions = self.swapper.start(event)
        if event.learned is not None:
            try:
                self.costs.restore(event.learned)
            except ValueError as error:
                text = f"what the run had learned of its costs is learned anew: {error}"
                self.books.warnings.append(text)
                actions.append(Warn(message=text))
        return actions

    def _restored(self, event: Restored) -> list[Action]:
        is_new = self.phase is Phase.STARTING and not self.buffer.next_trajectory
        if not is_new or self._prompts is None:
            raise ProtocolError("a buffer is restored right after RunStarted, once")
        actions, given_up = resumption.take_up(
            event.buffer,
            self.buffer,
            self.swapper.replays,
            self.books,
            self.settings,
            self.swapper.trainer_version,
            event.time_s,
        )
        self._prompts.draw_again(given_up)
        return actions

    def _timer_fired(self, event: TimerFired) -> list[Action]:
        if (again := self.swapper.stood_still(event)) is not None:
            return again
        if silent := self.swapper.hangs(event):
            return self.recovery.lose(*silent, event.time_s)
        return self.swapper.timer_fired(event)

    @property
    def _taken_up(self) -> ResumedTally:
        """Where episodes that are resumed are counted: by what they are resumed from."""
        return self.books.taken_back if self.recovery.num_rollbacks else self.books.resumed

    def _episode_resumed(self, event: EpisodeResumed) -> list[Action]:
        trajectory = self._current(event.trajectory, event.attempt)
        if trajectory is None:
            return []
        if trajectory.state is not State.ACTING:
            raise ProtocolError(f"there is nothing to resume. {trajectory.tell()}")
        self._check_content(trajectory, event.base)
        self._taken_up.continued += 1
        self.swapper.progress_s = event.time_s
        if trajectory.wants_turn:
            trajectory.move(Trigger.TURN_READY, event.time_s)
            self.requests.wait(trajectory)
        return []

    def _episode_not_resumed(self, event: EpisodeNotResumed) -> list[Action]:
        """It begins again: what it had sampled does not go with the answers it would get now."""
        trajectory = self._current(event.trajectory, event.attempt)
        if trajectory is None:
            return []
        trajectory.check(Trigger.RESTARTED)
        num_discarded = self.buffer.restart(trajectory, event.time_s)
        self._taken_up.restart(event.reason, num_discarded)
        self.books.tokens["discarded"] += num_discarded
        self.books.restarts += 1
        self.swapper.progress_s = event.time_s
        return [
            StartTrajectory(
                trajectory=trajectory.id, group=trajectory.group, attempt=trajectory.attempt
            )
        ]

    # What comes in about evaluations

    def _evaluation_turn_ready(self, event: EvaluationTurnReady) -> list[Action]:
        is_in_time = self.swapper.evaluations.turn_ready(event)
        return self._of_evaluation(event, is_in_time)

    def _evaluation_request_ended(self, event: EvaluationRequestEnded) -> list[Action]:
        is_in_time = self.swapper.evaluations.request_ended(event)
        return self._of_evaluation(event, is_in_time)

    def _of_evaluation(self, event: Event, is_in_time: bool) -> list[Action]:
        if is_in_time:
            self.swapper.progress_s = event.time_s
        else:
            self.books.late_events += 1
        return []

    # What comes in about trajectories

    def _current(self, identifier: TrajectoryId, attempt: int) -> Trajectory | None:
        """The trajectory that an event speaks of, or None where the event comes too late."""
        trajectory = self.buffer.get(identifier)
        if trajectory is None or attempt < trajectory.attempt:
            self.books.late_events += 1
            return None
        if attempt > trajectory.attempt:
            raise ProtocolError(
                f"trajectory {identifier} has no attempt {attempt}. {trajectory.tell()}"
            )
        return trajectory

    @staticmethod
    def _check_content(trajectory: Trajectory, base: str) -> None:
        if base != trajectory.digest:
            raise ProtocolError(
                f"the content of trajectory {trajectory.id} has changed behind the scheduler's "
                f"back: its digest is {base or 'of nothing'}, not {trajectory.digest}. "
                f"{trajectory.tell()}"
            )

    def _turn_ready(self, event: TurnReady) -> list[Action]:
        trajectory = self._current(event.trajectory, event.attempt)
        if trajectory is None:
            return []
        trajectory.check(Trigger.TURN_READY)
        self._check_content(trajectory, event.base)
        is_step = trajectory.num_sampled_tokens > 0
        self.books.environment(event.busy_s, event.time_s, is_step=is_step)
        trajectory.move(Trigger.TURN_READY, event.time_s)
        trajectory.digest = event.digest
        trajectory.num_context_tokens = event.num_context_tokens
        trajectory.num_turns += 1
        self.requests.wait(trajectory)
        return []

    def _request_ended(self, event: RequestEnded) -> list[Action]:
        trajectory = self._current(event.trajectory, event.attempt)
        if trajectory is None:
            return self._request_came_late(event)
        if not self.requests.is_inflight(event.request, event.trajectory):
            raise ProtocolError(
                f"request {event.request} of trajectory {event.trajectory} is not in flight. "
                f"{trajectory.tell()}"
            )
        self._check_content(trajectory, event.base)
        self._check_spans(trajectory, event)
        aborted = event.finish_reason is FinishReason.ABORT
        trajectory.check(Trigger.ABORTED if aborted else Trigger.GENERATED)

        num_sampled = sum(span.length for span in event.spans)
        self.books.tokens["generated"] += num_sampled + event.num_dropped_tokens
        self.books.tokens["discarded"] += event.num_dropped_tokens
        # A request that sampled nothing may never have reached the engine.
        if trajectory.resumed and num_sampled + event.num_dropped_tokens:
            self.books.tokens["reprefilled"] += (
                trajectory.num_context_tokens - event.num_cached_tokens
            )
            trajectory.resumed = False
        trajectory.move(Trigger.ABORTED if aborted else Trigger.GENERATED, event.time_s)
        self.buffer.extend(trajectory, event.spans)
        trajectory.digest = event.digest
        trajectory.num_context_tokens += num_sampled
        trajectory.request = None
        self.books.max_spans = max(self.books.max_spans, len(trajectory.spans))
        self.requests.end(event.request)
        trajectory.num_turns += not aborted
        if aborted:
            trajectory.resumed = trajectory.num_sampled_tokens > 0
            self.requests.wait(trajectory)
        self.swapper.progress_s = event.time_s
        return self.swapper.request_returned(event.time_s)

    def _request_came_late(self, event: RequestEnded) -> list[Action]:
        """Nobody waits for it any more, but the engine is free of it, and its tokens were made."""
        num_tokens = sum(span.length for span in event.spans) + event.num_dropped_tokens
        self.books.tokens["generated"] += num_tokens
        self.books.tokens["discarded"] += num_tokens
        self.requests.give_up(event.request)
        return self.swapper.request_returned(event.time_s)

    def _check_spans(self, trajectory: Trajectory, event: RequestEnded) -> None:
        """While a request is in flight the engine's version does not change."""
        wrong = [s for s in event.spans if s.version != self.swapper.engine_version]
        if wrong or any(s.length < 1 for s in event.spans):
            raise ProtocolError(
                f"request {event.request} reports tokens of {event.spans}, but the engine is at "
                f"version {self.swapper.engine_version}. {trajectory.tell()}"
            )

    def _trajectory_finished(self, event: TrajectoryFinished) -> list[Action]:
        trajectory = self._current(event.trajectory, event.attempt)
        if trajectory is None:
            return []
        trajectory.check(Trigger.SCORED)
        self._check_content(trajectory, event.base)
        self.books.environment(event.busy_s, event.time_s, is_step=True)
        self.swapper.progress_s = event.time_s
        if event.truncated:
            self.books.truncated[event.truncated] += 1
        actions: list[Action] = []
        reason = self._why_masked(event)
        if reason:
            self.buffer.mask(trajectory, event.time_s)
            actions.append(self._ended(trajectory, reason))
        else:
            self.buffer.finish(trajectory, event.reward, event.time_s)
        actions += redundancy.cancel_spare_members(
            self.buffer, self.requests, self.books, trajectory.group, event.time_s
        )
        if self.buffer.is_barren(trajectory.group):
            ended = self.buffer.end_group(trajectory.group, Ending.MASKED, event.time_s)
            actions += [self._ended(m, "its group has no trainable token") for m in ended]
            version = self.swapper.trainer_version
            if verdict := self._barren_groups.count(version, reason):
                return actions + self.swapper.fail(verdict, event.time_s)
        if event.masked and (verdict := self._loss_cap.lose(trajectory.id, _INVALID)):
            return actions + self.swapper.fail(verdict, event.time_s)
        actions += self._flat_groups.consider(
            trajectory.group, self.swapper.trainer_version, event.time_s
        )
        # PARKING may have waited for a request that is given up.
        return actions + self.swapper.request_returned(event.time_s)

    def _why_masked(self, event: TrajectoryFinished) -> str | None:
        if event.masked:
            return _INVALID
        if event.truncated and self.settings.mask_truncated:
            return f"truncated: {event.truncated}"
        return None

    def _trajectory_lost(self, event: TrajectoryLost) -> list[Action]:
        if event.ending not in (Ending.FILTERED, Ending.FAILED):
            raise ProtocolError(f"a fault cannot end a trajectory as {event.ending}")
        trajectory = self._current(event.trajectory, event.attempt)
        if trajectory is None:
            return []
        if trajectory.state is not State.ACTING:
            raise ProtocolError(f"only its environment can lose it. {trajectory.tell()}")
        is_step = trajectory.num_sampled_tokens > 0
        self.books.environment(event.busy_s, event.time_s, is_step=is_step)
        self.books.environment_failures += event.ending is Ending.FILTERED
        self.swapper.progress_s = event.time_s
        verdict = self._loss_cap.lose(trajectory.id, event.reason)
        self.buffer.lose(trajectory, event.ending, event.time_s)
        actions: list[Action] = [self._ended(trajectory, event.reason)]
        if verdict:
            return actions + self.swapper.fail(verdict, event.time_s)
        if fresh := self.buffer.refill(trajectory):
            actions.append(self._start(fresh))
        return actions

    def _ended(self, trajectory: Trajectory, reason: str) -> EndTrajectory:
        assert trajectory.ending is not None
        self.books.end(trajectory.ending, reason, trajectory.num_sampled_tokens)
        return EndTrajectory(trajectory=trajectory.id, ending=trajectory.ending, reason=reason)
