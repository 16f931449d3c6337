"""A world without time and without I/O that feeds the scheduler every fact that could come next.

Which of the possible facts comes is the caller's choice, so Hypothesis can look for the order
that breaks something.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.audit import Auditor
from colocate.core.buffer_snapshot import BufferSnapshot
from colocate.core.deadlines import driver_stood_still
from colocate.core.memory import EVICTED
from colocate.core.phases import ENDS, Phase
from colocate.core.remedies import Remedy
from colocate.core.scheduler import Scheduler
from colocate.core.settings import Settings
from colocate.core.types import (
    ENGINE_PARTS,
    TRAINER_PARTS,
    Ending,
    FinishReason,
    MemorySample,
    Part,
    SleepMode,
    Span,
    TrajectoryId,
    Version,
)

PHASE_OF = {
    act.StartPorts: Phase.STARTING,
    act.StartEngine: Phase.STARTING,
    act.Park: Phase.PARKING,
    act.Sleep: Phase.SLEEPING,
    act.LoadTrainer: Phase.TRAINER_WAKING,
    act.OffloadTrainer: Phase.TRAINER_OFFLOADING,
    act.WakeWeights: Phase.WEIGHTS_WAKING,
    act.Publish: Phase.PUBLISHING,
    act.WakeKv: Phase.KV_WAKING,
    act.CloseRun: Phase.CLOSING,
}

FAULTS = ("turn", "finish", "mask", "filter", "fail")


@dataclass(frozen=True, kw_only=True)
class Device:
    """What everything takes of a device of ``total`` units, and what the probe can tell of it."""

    total: int = 100
    parts: dict[Part, int] = field(
        default_factory=lambda: {
            Part.KV_CACHE: 40,
            Part.WEIGHTS: 10,
            Part.PARAMETERS: 10,
            Part.GRADIENTS: 10,
            Part.OPTIMIZER: 30,
            Part.REFERENCE: 0,
        }
    )
    engine_rest: int = 10
    trainer_rest: int = 0
    activations: int = 10
    generation: int = 0
    """Taken in a rollout beyond what a wake brings back, and kept until the engine sleeps."""
    strangers: int = 0
    tells_tenants: bool = True

    def size(self, parts: frozenset[Part]) -> int:
        return sum(self.parts[part] for part in parts)

    @property
    def can_take_turns(self) -> bool:
        """Whether each side fits alone, the other as far away as it goes."""
        around = self.engine_rest + self.trainer_rest + self.strangers
        training = around + self.size(TRAINER_PARTS) + self.activations
        rollout = around + self.size(ENGINE_PARTS) + self.generation
        return max(training, rollout) <= self.total


@dataclass
class Actor:
    """A trajectory as the world knows it."""

    attempt: int = 0
    content: str = ""
    spans: list[Span] = field(default_factory=list)
    request: str | None = None
    is_acting: bool = True
    turns: int = 0
    is_replaying: bool = False


@dataclass
class Evaluation:
    """As the world knows it: ``acting`` are with an environment, ``inflight`` at the engine."""

    version: Version
    acting: set[int]
    queued: set[int] = field(default_factory=set)
    inflight: dict[int, str] = field(default_factory=dict)
    scored: int = 0
    lost: int = 0
    is_void: bool = False

    @property
    def num_open(self) -> int:
        return len(self.acting) + len(self.queued) + len(self.inflight)

    @property
    def can_go_on(self) -> bool:
        """Not where all that is left waits for the engine."""
        return bool(self.acting or self.inflight or not self.num_open)


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint: what the scheduler holds, and the contents."""

    version: Version = Version(0)
    cursor: ev.PromptCursor = field(default_factory=ev.PromptCursor)
    buffer: BufferSnapshot | None = None
    actors: dict[TrajectoryId, Actor] = field(default_factory=dict)


class World:
    def __init__(
        self,
        settings: Settings,
        *,
        max_turns: int = 3,
        device: Device | None = None,
        fair_reward: Callable[[TrajectoryId], int] = lambda _: 0,
        origin: Saved | None = None,
        evaluated: int | None = None,
        num_losses: int = 0,
    ) -> None:
        self._fair_reward = fair_reward
        self.device = device or Device()
        self.engine_gone: frozenset[Part] = frozenset()
        self.trainer_gone = TRAINER_PARTS
        self._is_training = False
        self.peak_used = 0
        self.engine_leak = 0
        self.trainer_leak = 0
        self.ineffective: set[type[act.Action]] = set()
        self.metrics: dict[str, float] = {}
        self.scheduler = Scheduler(settings)
        self.auditor = Auditor()
        self.actors: dict[TrajectoryId, Actor] = {}
        self.kept: dict[TrajectoryId, Actor] = {}
        self.ratings: list[act.RateCheckpoint] = []
        self.lines: list[tuple[ev.Event, list[act.Action]]] = []
        self.time_s = 0.0
        self._max_turns = max_turns
        self._operation: act.Action | None = None
        self._swap_timers: list[float] = []
        self._unwanted: list[tuple[TrajectoryId, int, str]] = []
        self._wants_memory = False
        self._has_moments = False
        self._has_generated = False
        self._parking = False
        self._evaluation: Evaluation | None = None
        self._untold: list[Evaluation] = []
        self._evaluation_timers: list[tuple[float, str]] = []
        self.num_losses = num_losses  # that may still come
        self.incarnation = 0
        self._deadline: act.SetTimer | None = None
        self._is_saved = False
        self._stale: list[ev.Event] = []
        self._aside: dict[TrajectoryId, Actor] = {}
        self._kept_for_rollback: dict[TrajectoryId, Actor] = {}
        origin = origin or Saved()
        self.take(
            ev.RunStarted(
                time_s=0.0,
                settings=settings,
                version=origin.version,
                cursor=origin.cursor,
                evaluated=None if evaluated is None else Version(evaluated),
            )
        )
        if origin.buffer is not None:
            self._take_up(origin)
            self.take(ev.Restored(time_s=0.0, buffer=origin.buffer))
        self._kept_for_rollback = self._copies()

    def _copies(self) -> dict[TrajectoryId, Actor]:
        return {t: copy.deepcopy(a) for t, a in {**self.actors, **self.kept}.items()}

    def _take_up(self, origin: Saved) -> None:
        assert origin.buffer is not None
        for record in origin.buffer.contents:
            saved = origin.actors[record.id]
            actor = Actor(
                attempt=record.attempt,
                content=saved.content,
                spans=list(saved.spans),
                is_acting=False,
                turns=saved.turns,
            )
            (self.kept if record.ending else self.actors)[record.id] = actor

    def save(self) -> Saved:
        """What a checkpoint of this moment holds."""
        buffer = self.scheduler.snapshot()
        return Saved(
            version=self.scheduler.swapper.trainer_version,
            cursor=self.scheduler.cursor,
            buffer=buffer,
            actors=self._copies(),
        )

    @property
    def is_over(self) -> bool:
        return self.scheduler.phase in ENDS

    def take(self, event: ev.Event) -> list[act.Action]:
        actions = self.scheduler.handle(event)
        self.lines.append((event, actions))
        self.auditor.feed(event, actions)
        for action in actions:
            self._carry_out(action)
        return actions

    def possible(self) -> list[Callable[[int], None]]:
        """Every fact that could come next; each takes a number that chooses its variant."""
        facts: list[Callable[[int], None]] = []
        if self._operation is not None:
            facts.append(self._end_operation)
        if self._wants_memory:
            facts.append(self._sample_memory)
        if self._swap_timers:
            facts.append(self._fire_swap_timer)
        if self._unwanted:
            facts.append(self._answer_late)
        if self._evaluation_timers:
            facts.append(self._fire_evaluation_timer)
        if self._evaluation is not None and self._evaluation.can_go_on:
            facts.append(self._go_on_evaluating)
        if self._untold:
            facts.append(self._tell_of_cut)
        if self._stale:
            facts.append(self._answer_stale)
        if self._is_saving:
            facts.append(self._write_checkpoint)
        if self.num_losses and self.scheduler.phase is not Phase.CLOSING:
            facts += [self._lose_engine, self._lose_trainer]
            if self._deadline is not None and self._hangs:
                facts.append(self._hang)
        for identifier, actor in self.actors.items():
            if actor.request is not None:
                facts.append(lambda n, i=identifier: self._end_request(i, n))
            elif actor.is_acting:
                facts.append(lambda n, i=identifier: self._answer(i, FAULTS[n % len(FAULTS)], n))
        return facts

    def finish_fairly(self, max_events: int = 20_000) -> None:
        """From here on everything answers, in order, and nothing breaks."""
        for _ in range(max_events):
            if self.is_over:
                return
            self.step_fairly()
        raise AssertionError(f"not over after {max_events} events")

    def step_fairly(self) -> None:
        """The next fact, where everything answers in order."""
        if self._operation is not None:
            self._end_operation(0)
        elif self._wants_memory:
            self._sample_memory(0)
        elif self._evaluation is not None and self._evaluation.can_go_on:
            self._go_on_evaluating(2)
        elif self._untold:
            self._tell_of_cut(0)
        elif not self._progress_one():
            assert self._swap_timers, "nothing can happen any more"
            self._fire_swap_timer(0)

    def _progress_one(self) -> bool:
        for identifier, actor in self.actors.items():
            if actor.request is not None:
                self._end_request(identifier, 2)
                return True
            if actor.is_acting:
                done = actor.turns >= self._max_turns
                if done:
                    self._answer(identifier, "finish", self._fair_reward(identifier))
                else:
                    self._answer(identifier, "turn", 0)
                return True
        return False

    # Losses

    @property
    def _is_saving(self) -> bool:
        action = self._operation
        return isinstance(action, act.OffloadTrainer) and action.checkpoint and not self._is_saved

    @property
    def _hangs(self) -> bool:
        """Whether an operation of a phase is under way, which may never end."""
        return self._operation is not None and not isinstance(self._operation, act.Relieve)

    def _write_checkpoint(self, _: int) -> None:
        assert isinstance(self._operation, act.OffloadTrainer)
        self._is_saved = True
        self._kept_for_rollback = self._aside
        self.take(
            ev.CheckpointWritten(
                time_s=self._tick(),
                incarnation=self.incarnation,
                version=self._operation.version,
            )
        )

    def _lose_engine(self, _: int) -> None:
        self.num_losses -= 1
        lost = ev.EngineLost(time_s=self._tick(), incarnation=self.incarnation, error="killed")
        self._stale.append(lost)  # each of its requests tells of it
        self.take(lost)

    def _lose_trainer(self, _: int) -> None:
        self.num_losses -= 1
        self.take(ev.TrainerLost(time_s=self._tick(), incarnation=self.incarnation, error="killed"))

    def _hang(self, _: int) -> None:
        self.num_losses -= 1
        self.fire_deadline()

    def fire_deadline(self) -> None:
        """The present deadline; where time has long passed it by, the one that is set instead."""
        late = None
        while self._deadline is not None and self._deadline is not late:
            late = self._deadline
            self.time_s = max(self.time_s, late.at_s)
            stood_still = driver_stood_still(self.time_s, late.at_s)
            self.take(ev.TimerFired(time_s=self.time_s, timer=late.timer))
            if not stood_still:
                return

    def _answer_stale(self, n: int) -> None:
        """What was on its way when a process was lost comes in after it was started anew."""
        event = self._stale.pop(n % len(self._stale))
        actions = self.take(dataclasses.replace(event, time_s=self._tick()))
        concerned = [a for a in actions if getattr(a, "trajectory", None) is not None]
        assert isinstance(event, ev.EngineLost) or not concerned

    def _give_up_operation(self, incarnation: int) -> None:
        action, self._operation = self._operation, None
        if action is not None and type(action) in PHASE_OF:
            self._stale.append(
                ev.PhaseEnded(
                    time_s=self.time_s,
                    incarnation=self.incarnation,
                    phase=PHASE_OF[type(action)],
                    memory=self.memory(),
                )
            )
        self.incarnation = incarnation
        self._wants_memory = False

    def _roll_back(self, action: act.RollBack) -> None:
        self._give_up_operation(action.incarnation)
        for identifier, actor in self.actors.items():
            if actor.request is not None:
                self._unwanted.append((identifier, actor.attempt, actor.request))
            elif actor.is_acting:
                self._stale.append(
                    ev.TrajectoryFinished(
                        time_s=self.time_s,
                        trajectory=identifier,
                        attempt=actor.attempt,
                        reward=1.0,
                        busy_s=0.1,
                        base="?",
                    )
                )
        self.actors, self.kept = {}, {}
        for record in self.scheduler.snapshot().contents:
            # One without content may have been admitted in the very line of the checkpoint.
            known = self._kept_for_rollback.get(record.id, Actor())
            assert bool(known.content) == bool(record.num_context_tokens)
            actor = copy.deepcopy(known)
            actor.attempt, actor.request = record.attempt, None
            actor.is_acting = actor.is_replaying = False
            (self.kept if record.ending else self.actors)[record.id] = actor

    # Facts

    def _tick(self) -> float:
        self.time_s += 0.25
        return self.time_s

    def memory(self) -> MemorySample:
        device = self.device
        engine = (
            self.engine_leak + device.engine_rest + device.size(ENGINE_PARTS - self.engine_gone)
        )
        engine += device.generation if self._has_generated else 0
        held = self.held()
        trainer = self.trainer_leak + device.trainer_rest + sum(held[p] for p in TRAINER_PARTS)
        trainer += device.activations if self._is_training else 0
        used = engine + trainer + device.strangers
        self.peak_used = max(self.peak_used, used)
        tenants = {"engine": engine, "trainer": trainer} if device.tells_tenants else {}
        return MemorySample(used=used, total=device.total, tenants=tenants)

    def held(self) -> dict[Part, int]:
        gone = self.engine_gone | self.trainer_gone
        return {part: 0 if part in gone else self._size(part) for part in Part}

    def _size(self, part: Part) -> int:
        """An optimizer makes its moments in its first step, or reads them from a checkpoint."""
        size = self.device.parts[part]
        return size // 3 if part is Part.OPTIMIZER and not self._has_moments else size

    def _sample_memory(self, _: int) -> None:
        self._wants_memory = False
        self.take(
            ev.MemorySampled(
                time_s=self._tick(), incarnation=self.incarnation, memory=self.memory()
            )
        )

    def _fire_swap_timer(self, _: int) -> None:
        self.time_s = max(self.time_s, self._swap_timers.pop(0))
        self.take(ev.TimerFired(time_s=self.time_s, timer="swap"))

    # Evaluations

    def _fire_evaluation_timer(self, _: int) -> None:
        at_s, timer = self._evaluation_timers.pop(0)
        self.time_s = max(self.time_s, at_s)
        self.take(ev.TimerFired(time_s=self.time_s, timer=timer))

    def _go_on_evaluating(self, n: int) -> None:
        evaluation = self._evaluation
        assert evaluation is not None
        if at_work := [*evaluation.inflight, *sorted(evaluation.acting)]:
            sample = at_work[n % len(at_work)]
            if sample in evaluation.inflight:
                self._end_evaluation_request(sample, n)
            else:
                self._answer_sample(sample, ("turn", "lose", "score")[n % 3])
        if self._evaluation is evaluation and not evaluation.num_open:
            self._evaluation = None
            self._tell(evaluation, num_cut=0)

    def _end_evaluation_request(self, sample: int, n: int) -> None:
        evaluation = self._evaluation
        assert evaluation is not None
        request = evaluation.inflight.pop(sample)
        evaluation.acting.add(sample)
        self.take(
            ev.EvaluationRequestEnded(
                time_s=self._tick(),
                version=evaluation.version,
                sample=sample,
                request=request,
                spans=(Span(version=evaluation.version, length=1 + n),),
            )
        )

    def _answer_sample(self, sample: int, what: str) -> None:
        evaluation = self._evaluation
        assert evaluation is not None
        evaluation.acting.discard(sample)
        if what == "turn":
            evaluation.queued.add(sample)
            self.take(
                ev.EvaluationTurnReady(
                    time_s=self._tick(), version=evaluation.version, sample=sample
                )
            )
        evaluation.lost += what == "lose"
        evaluation.scored += what == "score"

    def _tell_of_cut(self, n: int) -> None:
        evaluation = self._untold.pop(n % len(self._untold))
        self._tell(evaluation, num_cut=evaluation.num_open)

    def _tell(self, evaluation: Evaluation, *, num_cut: int) -> None:
        lost = {"it was unlucky": evaluation.lost} if evaluation.lost else {}
        metrics = {"pass@1": 0.5} if evaluation.scored and not evaluation.is_void else {}
        self.take(
            ev.EvaluationEnded(
                time_s=self._tick(),
                version=evaluation.version,
                num_scored=evaluation.scored,
                num_cut=num_cut,
                lost=lost,
                metrics=metrics,
            )
        )

    def _end_operation(self, _: int) -> None:
        if self._is_saving:
            self._write_checkpoint(0)
        action, self._operation = self._operation, None
        assert action is not None
        if isinstance(action, act.Train):
            self._end_training(action)
            return
        if isinstance(action, act.StartPorts):
            self._has_moments = action.version > 0
            loaded = {part: self._size(part) for part in TRAINER_PARTS}
            self.take(
                ev.PartsReported(time_s=self._tick(), incarnation=self.incarnation, held=loaded)
            )
        self._move_memory(action)
        if isinstance(action, act.Relieve):
            self.take(
                ev.Relieved(
                    time_s=self._tick(),
                    incarnation=self.incarnation,
                    remedy=action.remedy,
                    memory=self.memory(),
                    held=self.held(),
                )
            )
            return
        version = action.version if isinstance(action, act.Publish) else None
        self.take(
            ev.PhaseEnded(
                time_s=self._tick(),
                incarnation=self.incarnation,
                phase=PHASE_OF[type(action)],
                memory=self.memory(),
                version=version,
                held=self.held(),
            )
        )

    def _move_memory(self, action: act.Action) -> None:
        if type(action) in self.ineffective:
            return
        match action:
            case act.StartPorts() | act.StartEngine():
                self.engine_gone, self.trainer_gone = frozenset(), TRAINER_PARTS
                self._has_generated = False
            case act.Park():
                self._has_generated = True
            case act.Relieve(remedy=Remedy.COLLECT):
                self.engine_leak = self.trainer_leak = 0
            case act.Sleep(mode=mode) | act.Relieve(remedy=Remedy.SLEEP_DEEPER, mode=mode):
                assert mode not in (None, SleepMode.PAUSE)
                self.engine_gone |= EVICTED[mode]
                self._has_generated = False
            case act.WakeWeights():
                self.engine_gone -= {Part.WEIGHTS}
            case act.WakeKv():
                self.engine_gone -= {Part.KV_CACHE}
            case act.LoadTrainer():
                self.trainer_gone = frozenset()
            case act.OffloadTrainer(parts=parts) | act.Relieve(parts=parts):
                self.trainer_gone |= frozenset(parts)
            case act.Publish(offload=parts):
                self.memory()
                self.trainer_gone |= frozenset(parts)
            case _:
                pass

    def _end_training(self, action: act.Train) -> None:
        self._is_training = self._has_moments = True
        peak = self.memory()
        self._is_training = False
        actors = [self.actors[t] for t in action.trajectories]
        actors += [self.kept[t] for replay in action.replays for t in replay.trajectories]
        self.take(
            ev.BatchTrained(
                time_s=self._tick(),
                incarnation=self.incarnation,
                batch=action.batch,
                version=Version(action.version + 1),
                digests=tuple(a.content for a in actors),
                num_tokens=sum(s.length for a in actors for s in a.spans),
                metrics=self.metrics,
                memory=self.memory(),
                peak=peak,
            )
        )

    def _end_request(self, identifier: TrajectoryId, n: int) -> None:
        actor = self.actors[identifier]
        assert actor.request is not None
        is_cut = self.scheduler.phase is Phase.STARTING
        aborted = is_cut or (self._parking and n % 3 != 2)
        length = 0 if is_cut else n % 4 if aborted else 1 + n % 4
        version = self.scheduler.swapper.engine_version
        spans = (Span(version=version, length=length),) if length else ()
        request, actor.request = actor.request, None
        base = actor.content
        actor.content += f"/{request}x{length}"
        actor.spans.extend(spans)
        actor.is_acting = not aborted
        self.take(
            ev.RequestEnded(
                time_s=self._tick(),
                trajectory=identifier,
                attempt=actor.attempt,
                request=request,
                finish_reason=FinishReason.ABORT if aborted else FinishReason.STOP,
                spans=spans,
                num_cached_tokens=0,
                base=base,
                digest=actor.content,
            )
        )

    def _answer_late(self, n: int) -> None:
        """A request that was given up comes back all the same; most never do."""
        identifier, attempt, request = self._unwanted.pop(n % len(self._unwanted))
        version = self.scheduler.swapper.engine_version
        self.take(
            ev.RequestEnded(
                time_s=self._tick(),
                trajectory=identifier,
                attempt=attempt,
                request=request,
                finish_reason=FinishReason.STOP,
                spans=(Span(version=version, length=1 + n % 4),),
                num_cached_tokens=0,
                base="?",
                digest="?",
            )
        )

    def _answer(self, identifier: TrajectoryId, what: str, n: int) -> None:
        actor = self.actors[identifier]
        if actor.is_replaying:
            self._end_replay(identifier, actor, is_equal=what in ("turn", "finish"))
            return
        if what == "turn" or (what in ("finish", "mask") and not actor.spans):
            base = actor.content
            actor.content += f"+{n}"
            actor.is_acting = False
            actor.turns += 1
            self.take(
                ev.TurnReady(
                    time_s=self._tick(),
                    trajectory=identifier,
                    attempt=actor.attempt,
                    num_context_tokens=len(actor.content),
                    busy_s=0.1,
                    base=base,
                    digest=actor.content,
                )
            )
            return
        actor.is_acting = False
        if what in ("finish", "mask"):
            self.take(
                ev.TrajectoryFinished(
                    time_s=self._tick(),
                    trajectory=identifier,
                    attempt=actor.attempt,
                    reward=float(n),
                    busy_s=0.1,
                    base=actor.content,
                    masked=what == "mask",
                )
            )
            return
        self.take(
            ev.TrajectoryLost(
                time_s=self._tick(),
                trajectory=identifier,
                attempt=actor.attempt,
                ending=Ending.FILTERED if what == "filter" else Ending.FAILED,
                reason="it was unlucky",
                busy_s=0.1,
            )
        )

    def _end_replay(self, identifier: TrajectoryId, actor: Actor, *, is_equal: bool) -> None:
        actor.is_replaying = False
        if is_equal:
            record = self.scheduler.buffer.get(identifier)
            actor.is_acting = record is not None and not record.wants_turn
            self.take(
                ev.EpisodeResumed(
                    time_s=self._tick(),
                    trajectory=identifier,
                    attempt=actor.attempt,
                    num_steps=actor.turns,
                    busy_s=0.1,
                    base=actor.content,
                )
            )
            return
        self.take(
            ev.EpisodeNotResumed(
                time_s=self._tick(),
                trajectory=identifier,
                attempt=actor.attempt,
                reason="it answers otherwise",
                busy_s=0.1,
            )
        )

    # Commands

    def _carry_out(self, action: act.Action) -> None:
        match action:
            case act.StartTrajectory():
                self.actors[action.trajectory] = Actor(attempt=action.attempt)
            case act.ResumeTrajectory():
                actor = self.actors[action.trajectory]
                actor.is_acting = True
                actor.is_replaying = actor.content != ""
            case act.GiveUpGroup():
                for trajectory in action.trajectories:
                    del self.actors[trajectory]
            case act.EndTrajectory():
                actor = self.actors.pop(action.trajectory)
                if actor.request is not None:
                    self._unwanted.append((action.trajectory, actor.attempt, actor.request))
                if action.keeps_content:
                    self.kept[action.trajectory] = actor
            case act.ForgetContent():
                for trajectory in action.trajectories:
                    del self.kept[trajectory]
            case act.SubmitRequest():
                actor = self.actors[action.trajectory]
                assert actor.request is None
                actor.request = action.request
            case act.SetTimer():
                if action.timer == "swap":
                    self._swap_timers.append(action.at_s)
                if action.timer.startswith("evaluation:"):
                    self._evaluation_timers.append((action.at_s, action.timer))
                if action.timer.startswith("deadline"):
                    self._deadline = action
            case act.Evaluate():
                assert self._evaluation is None
                self._evaluation = Evaluation(action.version, set(range(action.num_samples)))
            case act.SubmitEvaluation():
                assert self._evaluation is not None
                self._evaluation.queued.remove(action.sample)
                self._evaluation.inflight[action.sample] = action.request
            case act.CutEvaluation():
                assert self._evaluation is not None
                self._evaluation.is_void = action.is_void
                self._untold.append(self._evaluation)
                self._evaluation = None
            case act.RollBack():
                self._roll_back(action)
            case act.SampleMemory():
                self._wants_memory = True
            case act.AdoptPlan() | act.CloseSwap() | act.Decide() | act.Warn():
                pass
            case act.RateCheckpoint():
                self.ratings.append(action)
            case _:
                if isinstance(action, act.StartEngine):
                    self._give_up_operation(action.incarnation)
                if isinstance(action, act.OffloadTrainer):
                    self._is_saved, self._aside = False, self._copies()
                self._parking = isinstance(action, act.Park)
                self._operation = action
