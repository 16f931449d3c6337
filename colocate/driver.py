"""The only effect loop: read an event, ask the scheduler, journal both, carry the actions out.

        ports, runners, timers, signals --post--> [queue] --> Scheduler.handle --> journal
              ^                                                    |
              +------------------ carry out <----- actions --------+

Everything that runs beside the loop is a task of one TaskGroup. Whatever breaks in one of them
comes back as ``Faulted``, ends the run through the scheduler, and is its cause.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from colocate.core import actions as act
from colocate.core.actions import Action
from colocate.core.events import (
    BatchTrained,
    Event,
    Faulted,
    MemorySampled,
    PartsReported,
    PhaseEnded,
    Relieved,
    Restored,
    RunStarted,
    StopRequested,
    TimerFired,
)
from colocate.core.phases import ENDS, IllegalTransition, Phase
from colocate.core.remedies import Remedy
from colocate.core.scheduler import Scheduler
from colocate.core.swap import Outcome
from colocate.core.trajectory import ProtocolError
from colocate.core.types import TRAINER_PARTS, MemorySample, Part, Version
from colocate.journal import JournalWriter
from colocate.ports import (
    EnvironmentFactory,
    Inference,
    PromptSource,
    StepReport,
    Trainer,
    TrainingBatch,
    WeightTransfer,
)
from colocate.rollout.evaluation import EvaluationPlan, Evaluator
from colocate.rollout.floor import Floor
from colocate.rollout.gate import Gate
from colocate.rollout.runner import Desk, RewardFunction, RolloutRules, Tokenizer
from colocate.run_state import Checkpoints, RunState

logger = logging.getLogger(__name__)

LET_GO_S = 5.0
"""For the rest of a closing that missed its deadline, and then for noticing its cancellation."""

CLOCK_TICK_S = 1e-6
"""The resolution of the run's clock."""


class Observer(Protocol):
    """Looks on: display, metrics, trace, transcripts. Must not block and must not raise."""

    def on_progress(self, what: str) -> None: ...

    def on_event(self, event: Event, actions: Sequence[Action], scheduler: Scheduler) -> None: ...

    def on_step(self, batch: TrainingBatch, report: StepReport, floor: Floor) -> None: ...

    def on_memory(self, time_s: float, sample: MemorySample) -> None: ...

    def on_telemetry(self, time_s: float, values: Mapping[str, float]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The collaborators of one run.

    ``measure`` reads what decisions are taken on, ``telemetry`` what is only shown.
    """

    inference: Inference
    trainer: Trainer
    transfer: WeightTransfer
    measure: Callable[[], Awaitable[MemorySample]] | None
    make_environment: EnvironmentFactory
    prompts: PromptSource
    tokenizer: Tokenizer
    reward: RewardFunction | None
    checkpoints: Checkpoints
    telemetry: Callable[[], Awaitable[Mapping[str, float]]] | None = None


def _only_for_the_record(action: Action) -> None:
    """The journal has it, and observers have seen it."""


async def _held_by(ports: Sequence[Inference | Trainer]) -> Mapping[Part, int] | None:
    """Bytes on the device by part, as these ports report them."""
    held: dict[Part, int] = {}
    for port in ports:
        held.update(await port.residency())
    return held or None


class Driver:
    """Runs one run. Use once: ``outcome = await Driver(...).run(RunState())``."""

    def __init__(
        self,
        scheduler: Scheduler,
        ports: Ports,
        rules: RolloutRules,
        journal: JournalWriter,
        observers: Sequence[Observer] = (),
        *,
        evaluation: EvaluationPlan | None = None,
        sample_interval_s: float = 0.5,
        telemetry_interval_s: float = 5.0,
    ) -> None:
        self.scheduler = scheduler
        self._ports = ports
        self._rules = rules
        self._journal = journal
        self._observers = observers
        self._evaluation = evaluation
        self._evaluator: Evaluator | None = None
        self._sample_interval_s = sample_interval_s
        self._telemetry_interval_s = telemetry_interval_s
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._gate = Gate()
        self._timers: list[asyncio.TimerHandle] = []
        self._operation: asyncio.Task[None] | None = None
        self._peak: MemorySample | None = None
        self._closed = asyncio.Event()
        self._is_closing = False
        self._is_blind = False
        self._origin_s = 0.0
        self._carry_out: dict[type[Action], Callable[[Any], None]] = {
            act.StartTrajectory: self._start_trajectory,
            act.ResumeTrajectory: lambda a: self._floor.resume(a.trajectory, a.group, a.attempt),
            act.GiveUpGroup: lambda a: self._floor.forget(a.trajectories),
            act.SubmitRequest: lambda a: self._gate.let_through(a.trajectory, a.request),
            act.EndTrajectory: lambda a: self._floor.end(
                a.trajectory, keeps_content=a.keeps_content
            ),
            act.ForgetContent: lambda a: self._floor.forget(a.trajectories),
            act.Evaluate: lambda a: self._evaluations.begin(a),
            act.SubmitEvaluation: lambda a: self._evaluations.let_through(a),
            act.CutEvaluation: lambda a: self._evaluations.cut(a),
            act.RateCheckpoint: self._rate_checkpoint,
            act.SetTimer: self._set_timer,
            act.SampleMemory: self._sample_memory,
            act.Train: lambda a: self._operate(self._train(a)),
            act.StartPorts: self._phase(
                Phase.STARTING, self._start, ports.inference, ports.trainer
            ),
            act.Park: self._park,
            act.Sleep: self._phase(
                Phase.SLEEPING, lambda a: ports.inference.sleep(a.mode), ports.inference
            ),
            act.LoadTrainer: self._phase(
                Phase.TRAINER_WAKING, lambda _: ports.trainer.load(), ports.trainer
            ),
            act.OffloadTrainer: self._offload_trainer,
            act.WakeWeights: self._phase(
                Phase.WEIGHTS_WAKING, lambda _: ports.inference.wake("weights"), ports.inference
            ),
            act.Publish: self._phase(
                Phase.PUBLISHING, self._publish, ports.inference, ports.trainer
            ),
            act.WakeKv: self._phase(Phase.KV_WAKING, self._wake_kv, ports.inference),
            act.Relieve: lambda a: self._operate(self._relieve(a)),
            act.CloseRun: self._close,
            act.Warn: lambda a: logger.warning("%s", a.message),
            **dict.fromkeys((act.AdoptPlan, act.CloseSwap, act.Decide), _only_for_the_record),
        }

    def now_s(self) -> float:
        """Seconds since the run began, to the microsecond."""
        return round(asyncio.get_running_loop().time() - self._origin_s, 6)

    def post(self, event: Event) -> None:
        self._events.put_nowait(event)

    def request_stop(self, signal: int) -> None:
        """Asks for an orderly end. Call it on the loop's thread."""
        self.post(StopRequested(time_s=self.now_s(), signal=signal))

    async def run(self, origin: RunState) -> Outcome:
        """Runs to the end, whatever it is. No task and no timer is left behind.

        Args:
            origin: What the run goes on from; the default resumes nothing.
        """
        self._origin_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                desk = self._make_desk()
                self._floor = Floor(desk, self._ports.prompts, tasks, self._fault)
                if self._evaluation is not None:
                    self._evaluator = Evaluator(desk, self._evaluation, tasks, self._fault)
                watchers = [
                    tasks.create_task(self._watch_memory(), name="memory"),
                    tasks.create_task(self._watch_telemetry(), name="telemetry"),
                ]
                self._begin(origin)
                await self._loop()
                for watcher in watchers:
                    watcher.cancel()
        finally:
            for timer in self._timers:
                timer.cancel()
            self._journal.close()
        outcome = self.scheduler.swapper.outcome
        assert outcome is not None
        return outcome

    def _begin(self, origin: RunState) -> None:
        self.post(
            RunStarted(
                time_s=0.0,
                settings=self.scheduler.settings,
                version=origin.version,
                cursor=origin.cursor,
                learned=origin.learned,
                evaluated=origin.evaluated,
            )
        )
        if origin.buffer is not None:
            self._floor.take_up(origin)
            self.post(Restored(time_s=0.0, buffer=origin.buffer, saved_after=origin.saved_after))

    def _make_desk(self) -> Desk:
        return Desk(
            inference=self._ports.inference,
            gate=self._gate,
            tokenizer=self._ports.tokenizer,
            make_environment=self._ports.make_environment,
            reward=self._ports.reward,
            rules=self._rules,
            now_s=self.now_s,
            post=self.post,
        )

    async def _loop(self) -> None:
        while not (self.scheduler.phase in ENDS and self._closed.is_set()):
            event = await self._events.get()
            try:
                actions = self.scheduler.handle(event)
            except (ProtocolError, IllegalTransition) as error:
                logger.exception("the scheduler refused %s", event)
                event = Faulted(time_s=event.time_s, error=f"internal contradiction: {error}")
                actions = self.scheduler.handle(event)
            self._record(event, actions)
            for action in actions:
                try:
                    self._carry_out[type(action)](action)
                except Exception as error:
                    # A prompt source is called here, and it is somebody else's code.
                    self._fault(error)

    def _record(self, event: Event, actions: Sequence[Action]) -> None:
        """Journals and shows. A run that cannot be recorded (a full disk) is ended, not hidden."""
        if self._is_blind:
            return
        try:
            self._journal.write(event, actions)
            for observer in self._observers:
                observer.on_event(event, actions, self.scheduler)
        except Exception as error:
            self._is_blind = True
            self._fault(error)

    # Trajectories, evaluations, timers, memory

    @property
    def _evaluations(self) -> Evaluator:
        if self._evaluator is None:
            raise RuntimeError("an evaluation is due, and the driver was given no plan of one")
        return self._evaluator

    def _rate_checkpoint(self, action: act.RateCheckpoint) -> None:
        async def rate() -> None:
            try:
                await self._ports.checkpoints.rate(action.version, action.value, action.by)
            except Exception as error:
                self._fault(error)

        self._tasks.create_task(rate(), name="rating a checkpoint")

    def _start_trajectory(self, action: act.StartTrajectory) -> None:
        self._floor.start(action.trajectory, action.group, action.attempt)

    def _set_timer(self, action: act.SetTimer) -> None:
        def fire() -> None:
            self.post(TimerFired(time_s=self.now_s(), timer=action.timer))

        loop = asyncio.get_running_loop()
        self._timers = [t for t in self._timers if not t.cancelled() and t.when() > loop.time()]
        # A tick late, so that the rounded clock never reads less than the time that was asked for:
        # who waits for that time would find it too early, and is not asked again.
        self._timers.append(loop.call_at(self._origin_s + action.at_s + CLOCK_TICK_S, fire))

    def _sample_memory(self, action: act.SampleMemory) -> None:
        async def sample() -> None:
            await asyncio.sleep(action.at_s - self.now_s())
            memory = await self._measure()
            if memory is not None:
                self.post(MemorySampled(time_s=self.now_s(), memory=memory))

        self._operate(sample())

    async def _measure(self) -> MemorySample | None:
        if self._ports.measure is None:
            return None
        sample = await self._ports.measure()
        if self._peak is None or sample.used > self._peak.used:
            self._peak = sample
        for observer in self._observers:
            observer.on_memory(self.now_s(), sample)
        return sample

    async def _watch_memory(self) -> None:
        """Background samples: into the trace, and into the peak of the phase."""
        while self._ports.measure is not None:
            try:
                await self._measure()
            except Exception as error:
                self._fault(error)
                return
            await asyncio.sleep(self._sample_interval_s)

    async def _watch_telemetry(self) -> None:
        """What cannot be read is absent; a run does not end for want of something to show."""
        while self._ports.telemetry is not None:
            values = await self._ports.telemetry()
            for observer in self._observers:
                observer.on_telemetry(self.now_s(), values)
            await asyncio.sleep(self._telemetry_interval_s)

    # Operations: one at a time, each of a phase

    def _fault(self, error: BaseException) -> None:
        logger.error("the run is ended by a fault", exc_info=error)
        text = " ".join(str(error).split()) or "no message"
        self.post(Faulted(time_s=self.now_s(), error=f"{type(error).__name__}: {text}"))

    def _operate(self, operation: Awaitable[None]) -> None:
        async def guarded() -> None:
            try:
                await operation
            except Exception as error:
                self._fault(error)

        self._operation = self._tasks.create_task(guarded(), name="operation")

    def _phase(
        self,
        phase: Phase,
        carry_out: Callable[[Any], Awaitable[Version | None]],
        *concerned: Inference | Trainer,
    ) -> Callable[[Any], None]:
        """An action's handler that carries it out, measures, and reports the phase's end.

        ``concerned``: whose parts may have moved; each is asked what it holds.
        """

        async def operation(action: Action) -> None:
            self._peak = None
            version = await carry_out(action)
            held = await _held_by(concerned)
            memory = await self._measure()
            self._journal.flush()
            self.post(
                PhaseEnded(
                    time_s=self.now_s(),
                    phase=phase,
                    memory=memory,
                    peak=self._peak,
                    version=version,
                    held=held,
                )
            )

        return lambda action: self._operate(operation(action))

    async def _relieve(self, action: act.Relieve) -> None:
        inference, trainer = self._ports.inference, self._ports.trainer
        match action.remedy:
            case Remedy.COLLECT:
                await trainer.collect()
                await inference.collect()
            case Remedy.SLEEP_DEEPER:
                assert action.mode is not None
                await inference.sleep(action.mode)
            case Remedy.OFFLOAD_ALL:
                await trainer.offload(action.parts)
        held = await _held_by((inference, trainer))
        memory = await self._measure()
        self.post(Relieved(time_s=self.now_s(), remedy=action.remedy, memory=memory, held=held))

    def _tell(self, what: str) -> None:
        for observer in self._observers:
            observer.on_progress(what)

    async def _start(self, action: act.StartPorts) -> None:
        # One after the other: an engine that profiles free memory must not have a neighbour that
        # is still allocating.
        self._tell("starting the trainer (DeepSpeed)")
        await self._ports.trainer.start()
        if action.version > 0:
            await self._ports.checkpoints.restore(self._ports.trainer, action.version)
        if action.expect:
            await self._ports.transfer.expect()
        self.post(PartsReported(time_s=self.now_s(), held=await self._ports.trainer.residency()))
        await self._ports.trainer.offload(TRAINER_PARTS)
        self._tell("starting the engine (vLLM)")
        await self._ports.inference.start()
        if action.version > 0:
            # What the engine loaded is not what the checkpoint holds: it must not serve yet.
            self._gate.is_open = False
            await self._ports.inference.park()

    def _park(self, action: act.Park) -> None:
        # At once, not in the task that parks: no request may slip through in between.
        self._gate.is_open = False
        inference = self._ports.inference
        self._phase(Phase.PARKING, lambda _: inference.park(), inference)(action)

    async def _train(self, action: act.Train) -> None:
        self._peak = None
        batch = self._floor.batch(action, self.scheduler.buffer.rewards())
        digests = tuple(self._floor.contents[t].digest() for t in action.contents)
        report = await self._ports.trainer.train(batch)
        memory = await self._measure()
        for observer in self._observers:
            observer.on_step(batch, report, self._floor)
        self.post(
            BatchTrained(
                time_s=self.now_s(),
                batch=report.batch,
                version=report.version,
                digests=digests,
                num_tokens=int(report.metrics["num_tokens"]),
                metrics=report.metrics,
                memory=memory,
                peak=self._peak,
            )
        )

    def _offload_trainer(self, action: act.OffloadTrainer) -> None:
        state = self._state() if action.checkpoint else None

        async def offload(action: act.OffloadTrainer) -> None:
            await self._offload(action, state)

        self._phase(Phase.TRAINER_OFFLOADING, offload, self._ports.trainer)(action)

    async def _offload(self, action: act.OffloadTrainer, state: RunState | None) -> None:
        # The checkpoint comes first: optimizer state must still be where DeepSpeed looks for it.
        if state is not None:
            await self._write_checkpoint(state)
        if action.expect:
            await self._ports.transfer.expect()
        if action.parts:
            await self._ports.trainer.offload(action.parts)

    async def _publish(self, action: act.Publish) -> Version:
        publication = await self._ports.transfer.publish(action.version)
        if action.offload:
            await self._ports.trainer.offload(action.offload)
        return publication.version

    async def _wake_kv(self, action: act.WakeKv) -> None:
        if action.asleep:
            await self._ports.inference.wake("kv_cache")
        else:
            await self._ports.inference.resume()
        if action.verify:
            await self._ports.transfer.verify()
        self._gate.is_open = True

    # The end

    def _close(self, action: act.CloseRun) -> None:
        """Closes once, within a limit; the run's guard ends the processes that are left.

        Asked again (a deadline, or a fault elsewhere while closing), it only shortens the limit.
        """
        self._gate.is_open = False
        limit_s = LET_GO_S
        if not self._is_closing:
            self._is_closing = True
            self._operate(self._close_ports(self._last_state(action), self._operation))
            if self.scheduler.phase is not Phase.FAILED:
                return  # the scheduler watches its deadline
            limit_s = self.scheduler.settings.phase_timeout_s
        assert self._operation is not None
        self._tasks.create_task(self._let_go(self._operation, limit_s), name="letting go")

    async def _let_go(self, closing: asyncio.Task[None], limit_s: float) -> None:
        await asyncio.wait([closing], timeout=limit_s)
        if not closing.done():
            logger.error("closing has not ended within %s s and is given up", limit_s)
            closing.cancel()
            await asyncio.wait([closing], timeout=LET_GO_S)
        self._report_closed()

    def _last_state(self, action: act.CloseRun) -> RunState | None:
        """Closing goes on without a checkpoint where it cannot be told."""
        try:
            return self._state() if action.checkpoint else None
        except Exception as error:
            self._fault(error)
            return None

    async def _close_ports(
        self, state: RunState | None, unfinished: asyncio.Task[None] | None
    ) -> None:
        """Where one part breaks the others follow; what broke is reported when all are through."""
        if unfinished is not None:
            unfinished.cancel()
            await asyncio.wait([unfinished])
        errors: list[Exception] = []
        # The engine before the checkpoint: the trainer that is loaded for it may need its memory.
        parts = [self._floor.close, self._ports.inference.close]
        if self._evaluator is not None:
            parts.insert(0, self._evaluator.close)
        if state is not None:
            parts.append(partial(self._load_and_save, state))
        parts.append(self._ports.trainer.close)
        try:
            for close in parts:
                try:
                    await close()
                except Exception as error:
                    errors.append(error)
        finally:
            for broken in errors:
                self._fault(broken)
        self._report_closed()

    async def _load_and_save(self, state: RunState) -> None:
        await self._ports.trainer.load()
        await self._write_checkpoint(state)

    def _state(self) -> RunState:
        """The run at this moment: after the line that has just been journaled, and no later."""
        buffer = self.scheduler.snapshot()
        return RunState(
            version=self.scheduler.swapper.trainer_version,
            cursor=self.scheduler.cursor,
            learned=self.scheduler.costs.snapshot(),
            buffer=buffer,
            contents=self._floor.save(buffer),
            saved_after=None if self._is_blind else self._journal.position,
        )

    async def _write_checkpoint(self, state: RunState) -> None:
        self._journal.flush()  # the state names a line of it
        await self._ports.checkpoints.save(self._ports.trainer, state)

    def _report_closed(self) -> None:
        if not self._closed.is_set():
            self._closed.set()
            self.post(PhaseEnded(time_s=self.now_s(), phase=Phase.CLOSING))
