"""The loop itself: read an event, ask the scheduler, journal both, carry the actions out.

        ports, runners, timers, signals --post--> [queue] --> Scheduler.handle --> journal
              ^                                                    |
              +------------------ carry out <----- actions --------+

Everything that runs beside the loop is a task of one TaskGroup. Whatever breaks in one of them
comes back as ``Faulted``, ends the run through the scheduler, and is its cause; a process that is
lost comes back as ``EngineLost`` or ``TrainerLost``, and may be started anew.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any

from colocate.core import actions as act
from colocate.core.actions import Action
from colocate.core.events import (
    Event,
    Faulted,
    Restored,
    RunStarted,
    StopRequested,
)
from colocate.core.phases import ENDS, IllegalTransition
from colocate.core.scheduler import Scheduler
from colocate.core.swap import Outcome
from colocate.core.trajectory import ProtocolError
from colocate.driver.closing import Closing
from colocate.driver.context import Context, Observer, Ports
from colocate.driver.gauge import MemoryGauge
from colocate.driver.lifeline import Lifeline
from colocate.driver.operations import Operations
from colocate.driver.saving import Saver
from colocate.driver.timers import Timers
from colocate.journal import JournalWriter
from colocate.rollout.evaluation import EvaluationPlan, Evaluator
from colocate.rollout.floor import Floor
from colocate.rollout.runner import Desk, RolloutRules
from colocate.run_state import RunState

logger = logging.getLogger(__name__)


def _only_for_the_record(action: Action) -> None:
    """The journal has it, and observers have seen it."""


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
        self._rules = rules
        self._evaluation = evaluation
        self._run = Context(scheduler=scheduler, ports=ports, journal=journal, observers=observers)
        self._gauge = MemoryGauge(
            self._run,
            sample_interval_s=sample_interval_s,
            telemetry_interval_s=telemetry_interval_s,
        )
        self._saver = Saver(self._run)
        self._lifeline = Lifeline(self._run)
        operations = Operations(self._run, self._gauge, self._saver, self._lifeline)
        self._closing = Closing(self._run, operations, self._saver)
        self._timers = Timers(self._run)
        gate = self._run.gate
        self._carry_out: dict[type[Action], Callable[[Any], None]] = {
            act.StartTrajectory: lambda a: self._floor.start(a.trajectory, a.group, a.attempt),
            act.ResumeTrajectory: lambda a: self._floor.resume(a.trajectory, a.group, a.attempt),
            act.GiveUpGroup: lambda a: self._floor.forget(a.trajectories),
            act.SubmitRequest: lambda a: gate.let_through(a.trajectory, a.request),
            act.EndTrajectory: lambda a: self._floor.end(
                a.trajectory, keeps_content=a.keeps_content
            ),
            act.ForgetContent: lambda a: self._floor.forget(a.trajectories),
            act.Evaluate: lambda a: self._evaluator.begin(a),
            act.SubmitEvaluation: lambda a: self._evaluator.let_through(a),
            act.CutEvaluation: lambda a: self._evaluator.cut(a),
            act.RateCheckpoint: self._saver.rate,
            act.SetTimer: self._timers.set,
            act.CloseRun: self._closing.close,
            act.Warn: lambda a: logger.warning("%s", a.message),
            **operations.handlers(),
            **dict.fromkeys((act.AdoptPlan, act.CloseSwap, act.Decide), _only_for_the_record),
        }

    @property
    def _floor(self) -> Floor:
        return self._run.floor

    @property
    def _evaluator(self) -> Evaluator:
        if self._run.evaluator is None:
            raise RuntimeError("an evaluation is due, and the driver was given no plan of one")
        return self._run.evaluator

    def now_s(self) -> float:
        """Seconds since the run began, to the microsecond."""
        return self._run.now_s()

    def request_stop(self, signal: int) -> None:
        """Asks for an orderly end. Call it on the loop's thread."""
        self._run.post(StopRequested(time_s=self.now_s(), signal=signal))

    async def run(self, origin: RunState) -> Outcome:
        """Runs to the end, whatever it is. No task and no timer is left behind.

        Args:
            origin: What the run goes on from; the default resumes nothing.
        """
        self._run.origin_s = asyncio.get_running_loop().time()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._run.tasks = tasks
                desk = self._make_desk()
                self._run.floor = Floor(desk, self._run.ports.prompts, tasks, self._run.fault)
                if self._evaluation is not None:
                    self._run.evaluator = Evaluator(desk, self._evaluation, tasks, self._run.fault)
                watchers = [
                    tasks.create_task(self._gauge.watch_memory(), name="memory"),
                    tasks.create_task(self._gauge.watch_telemetry(), name="telemetry"),
                ]
                self._begin(origin)
                await self._loop()
                for watcher in watchers:
                    watcher.cancel()
        finally:
            self._timers.cancel()
            self._run.journal.close()
        outcome = self.scheduler.swapper.outcome
        assert outcome is not None
        return outcome

    def _begin(self, origin: RunState) -> None:
        self._run.post(
            RunStarted(
                time_s=0.0,
                settings=self.scheduler.settings,
                version=origin.version,
                cursor=origin.cursor,
                learned=origin.learned,
                evaluated=origin.evaluated,
            )
        )
        self._saver.keep(origin)
        if origin.buffer is not None:
            self._floor.take_up(origin)
            self._run.post(
                Restored(time_s=0.0, buffer=origin.buffer, saved_after=origin.saved_after)
            )

    def _make_desk(self) -> Desk:
        run, ports = self._run, self._run.ports
        return Desk(
            inference=self._lifeline,
            gate=run.gate,
            tokenizer=ports.tokenizer,
            make_environment=ports.make_environment,
            reward=ports.reward,
            rules=self._rules,
            now_s=run.now_s,
            post=run.post,
        )

    async def _loop(self) -> None:
        while not (self.scheduler.phase in ENDS and self._closing.is_over.is_set()):
            event = await self._run.events.get()
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
                    self._run.fault(error)

    def _record(self, event: Event, actions: Sequence[Action]) -> None:
        """Journals and shows. A run that cannot be recorded (a full disk) is ended, not hidden."""
        if self._run.is_blind:
            return
        try:
            self._run.journal.write(event, actions)
            for observer in self._run.observers:
                observer.on_event(event, actions, self.scheduler)
        except Exception as error:
            self._run.is_blind = True
            self._run.fault(error)
