"""Operations on the ports: one at a time, each asked for by an action and answered by an event."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from colocate.core import actions as act
from colocate.core.actions import Action
from colocate.core.events import (
    BatchTrained,
    EngineLost,
    MemorySampled,
    PartsReported,
    PhaseEnded,
    Relieved,
    TrainerLost,
)
from colocate.core.phases import Phase
from colocate.core.remedies import Remedy
from colocate.core.types import TRAINER_PARTS, Part, Version
from colocate.driver.context import Context, one_line
from colocate.driver.gauge import MemoryGauge
from colocate.driver.lifeline import Lifeline
from colocate.driver.saving import Saver
from colocate.ports import EngineLostError, Inference, Trainer, TrainerLostError

logger = logging.getLogger(__name__)

Handler = Callable[[Any], None]

Operation = Callable[[int], Awaitable[None]]
"""Takes the incarnation that it was begun in, which its answers bear."""

LET_GO_S = 5.0
"""For an operation on a process that is lost to notice that it is cancelled."""


async def _held_by(ports: Sequence[Inference | Trainer]) -> Mapping[Part, int] | None:
    """Bytes on the device by part, as these ports report them."""
    held: dict[Part, int] = {}
    for port in ports:
        held.update(await port.residency())
    return held or None


class Operations:
    """``current`` is the one that runs, or ran last."""

    def __init__(
        self, context: Context, gauge: MemoryGauge, saver: Saver, lifeline: Lifeline
    ) -> None:
        self._run = context
        self._gauge = gauge
        self._saver = saver
        self._lifeline = lifeline
        self.current: asyncio.Task[None] | None = None

    def handlers(self) -> dict[type[Action], Handler]:
        """What each action of a phase begins."""
        inference, trainer = self._run.ports.inference, self._run.ports.trainer
        return {
            act.StartPorts: self._start_ports,
            act.StartEngine: self._start_engine,
            act.RollBack: self._roll_back,
            act.Park: self._park,
            act.Sleep: self._phase(Phase.SLEEPING, lambda a: inference.sleep(a.mode), inference),
            act.LoadTrainer: self._phase(Phase.TRAINER_WAKING, lambda _: trainer.load(), trainer),
            act.Train: lambda a: self.operate(lambda n: self._train(a, n)),
            act.OffloadTrainer: self._offload_trainer,
            act.WakeWeights: self._phase(
                Phase.WEIGHTS_WAKING, lambda _: inference.wake("weights"), inference
            ),
            act.Publish: self._phase(Phase.PUBLISHING, self._publish, inference, trainer),
            act.WakeKv: self._phase(Phase.KV_WAKING, self._wake_kv, inference),
            act.Relieve: lambda a: self.operate(lambda n: self._relieve(a, n)),
            act.SampleMemory: lambda a: self.operate(lambda n: self._sample_memory(a, n)),
        }

    def operate(self, operation: Operation) -> None:
        """Begins an operation; what breaks in it ends the run, unless a process was lost."""
        run, incarnation = self._run, self._run.incarnation

        async def guarded() -> None:
            try:
                await operation(incarnation)
            except EngineLostError as error:
                logger.warning("the engine is lost: %s", error)
                lost = EngineLost(
                    time_s=run.now_s(), incarnation=incarnation, error=one_line(error)
                )
                run.post(lost)
            except TrainerLostError as error:
                logger.warning("the trainer is lost: %s", error)
                run.post(
                    TrainerLost(time_s=run.now_s(), incarnation=incarnation, error=one_line(error))
                )
            except Exception as error:
                if incarnation == run.incarnation:
                    run.fault(error)
                else:
                    logger.warning("an operation that was given up has failed", exc_info=error)

        self.current = run.tasks.create_task(guarded(), name="operation")

    async def end(self, operation: asyncio.Task[None] | None) -> None:
        """Cancels an operation whose process is lost, and waits a while for its end."""
        if operation is None:
            return
        if not operation.cancelling():  # once more would break off what it tidies up
            operation.cancel()
        await asyncio.wait([operation], timeout=LET_GO_S)
        if not operation.done():
            logger.error("an operation on a lost process does not end, and is let go")

    def _phase(
        self,
        phase: Phase,
        carry_out: Callable[[Any], Awaitable[Version | None]],
        *concerned: Inference | Trainer,
    ) -> Handler:
        """An action's handler that carries it out, measures, and reports the phase's end.

        ``concerned``: whose parts may have moved; each is asked what it holds.
        """

        async def operation(action: Action, incarnation: int) -> None:
            self._gauge.begin_phase()
            version = await carry_out(action)
            held = await _held_by(concerned)
            memory = await self._gauge.measure()
            self._run.journal.flush()
            self._run.post(
                PhaseEnded(
                    time_s=self._run.now_s(),
                    incarnation=incarnation,
                    phase=phase,
                    memory=memory,
                    peak=self._gauge.peak,
                    version=version,
                    held=held,
                )
            )

        return lambda action: self.operate(lambda n: operation(action, n))

    # Memory

    async def _sample_memory(self, action: act.SampleMemory, incarnation: int) -> None:
        run = self._run
        await asyncio.sleep(action.at_s - run.now_s())
        memory = await self._gauge.measure()
        if memory is not None:
            run.post(MemorySampled(time_s=run.now_s(), incarnation=incarnation, memory=memory))

    async def _relieve(self, action: act.Relieve, incarnation: int) -> None:
        inference, trainer = self._run.ports.inference, self._run.ports.trainer
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
        memory = await self._gauge.measure()
        self._run.post(
            Relieved(
                time_s=self._run.now_s(),
                incarnation=incarnation,
                remedy=action.remedy,
                memory=memory,
                held=held,
            )
        )

    # Starting, in the beginning and after a loss

    def _start_ports(self, action: act.StartPorts) -> None:
        unfinished = self.current
        incarnation = action.incarnation

        async def start(action: act.StartPorts) -> None:
            if incarnation:
                await self.end(unfinished)
                await ports.inference.close()
                await ports.trainer.close()
                await ports.checkpoints.abandon(action.version)
            await self._start(action)

        ports = self._run.ports
        self._phase(Phase.STARTING, start, ports.inference, ports.trainer)(action)

    async def _start(self, action: act.StartPorts) -> None:
        # One after the other: an engine that profiles free memory must not have a neighbour that
        # is still allocating.
        run, ports = self._run, self._run.ports
        run.tell("starting the trainer (DeepSpeed)")
        await ports.trainer.start()
        if action.version > 0:
            await ports.checkpoints.restore(ports.trainer, action.version)
        if action.expect:
            await ports.transfer.expect()
        held = await ports.trainer.residency()
        run.post(PartsReported(time_s=run.now_s(), incarnation=action.incarnation, held=held))
        await ports.trainer.offload(TRAINER_PARTS)
        run.tell("starting the engine (vLLM)")
        await ports.inference.start()
        if action.version > 0 or action.incarnation > 0:
            # What the engine loaded is not what the checkpoint holds: it must not serve yet.
            run.gate.is_open = False
            await ports.inference.park()

    def _start_engine(self, action: act.StartEngine) -> None:
        ports, unfinished = self._run.ports, self.current
        self._give_up(action.incarnation)

        async def start(action: act.StartEngine) -> None:
            await self.end(unfinished)
            await ports.inference.close()
            if action.offload:
                await ports.trainer.offload(action.offload)
            self._run.tell("starting a new engine (vLLM)")
            await ports.inference.start()
            await ports.inference.park()

        self._phase(Phase.STARTING, start, ports.inference, ports.trainer)(action)

    def _roll_back(self, action: act.RollBack) -> None:
        self._give_up(action.incarnation)
        self._run.floor.go_back(self._run.scheduler.snapshot(), self._saver.go_back(action.version))

    def _give_up(self, incarnation: int) -> None:
        """At once: nothing is asked of the engine any more, and nobody waits for its answers."""
        self._run.gate.is_open = False
        self._run.incarnation = incarnation
        self._lifeline.cut()
        if self.current is not None:
            self.current.cancel()

    # The swap

    def _park(self, action: act.Park) -> None:
        # At once, not in the task that parks: no request may slip through in between.
        self._run.gate.is_open = False
        inference = self._run.ports.inference
        self._phase(Phase.PARKING, lambda _: inference.park(), inference)(action)

    async def _train(self, action: act.Train, incarnation: int) -> None:
        run = self._run
        self._gauge.begin_phase()
        batch = run.floor.batch(action, run.scheduler.buffer.rewards())
        digests = tuple(run.floor.contents[t].digest() for t in action.contents)
        report = await run.ports.trainer.train(batch)
        memory = await self._gauge.measure()
        for observer in run.observers:
            observer.on_step(batch, report, run.floor)
        run.post(
            BatchTrained(
                time_s=run.now_s(),
                incarnation=incarnation,
                batch=report.batch,
                version=report.version,
                digests=digests,
                num_tokens=int(report.metrics["num_tokens"]),
                metrics=report.metrics,
                memory=memory,
                peak=self._gauge.peak,
            )
        )

    def _offload_trainer(self, action: act.OffloadTrainer) -> None:
        state = self._saver.state() if action.checkpoint else None
        incarnation = self._run.incarnation

        async def offload(action: act.OffloadTrainer) -> None:
            if state is not None:
                # First: optimizer state must still be where DeepSpeed looks for it.
                await self._saver.write_and_tell(state, incarnation)
            if action.expect:
                await self._run.ports.transfer.expect()
            if action.parts:
                await self._run.ports.trainer.offload(action.parts)

        self._phase(Phase.TRAINER_OFFLOADING, offload, self._run.ports.trainer)(action)

    async def _publish(self, action: act.Publish) -> Version:
        publication = await self._run.ports.transfer.publish(action.version)
        if action.offload:
            await self._run.ports.trainer.offload(action.offload)
        return publication.version

    async def _wake_kv(self, action: act.WakeKv) -> None:
        inference = self._run.ports.inference
        if action.asleep:
            await inference.wake("kv_cache")
        else:
            await inference.resume()
        if action.verify:
            await self._run.ports.transfer.verify()
        self._run.gate.is_open = True
