"""One simulated run: the scheduler and the driver of a real run, over simulated ports."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from colocate.core.scheduler import Scheduler
from colocate.core.settings import Settings
from colocate.core.swap import Outcome
from colocate.driver import Driver, Observer, Ports
from colocate.journal import JournalWriter
from colocate.rollout.evaluation import EvaluationPlan
from colocate.rollout.runner import RolloutRules
from colocate.rollout.turns import PlainTurns
from colocate.run_state import RunState
from colocate.sim.ports import (
    SimCheckpoints,
    SimEngineSettings,
    SimEnvironment,
    SimEnvironmentSettings,
    SimInference,
    SimMemory,
    SimPrompts,
    SimTokenizer,
    SimTrainer,
    SimTrainerSettings,
    SimTransfer,
    sim_folder,
)

STOP_TOKEN = 0
FRESH = RunState()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSettings:
    """The simulated world. ``device_bytes`` None: nothing measures memory."""

    engine: SimEngineSettings = field(default_factory=SimEngineSettings)
    trainer: SimTrainerSettings = field(default_factory=SimTrainerSettings)
    environment: SimEnvironmentSettings = field(default_factory=SimEnvironmentSettings)
    device_bytes: int | None = 16 * 2**30
    max_new_tokens: int = 32
    max_turns: int = 8
    max_model_len: int = 512
    step_timeout_s: float = 300.0
    seed: int = 0


class Simulation:
    """Builds the ports; ``await run()`` under a virtual clock (``run_virtual``)."""

    def __init__(
        self,
        settings: Settings,
        world: SimSettings,
        journal: Path,
        observers: Sequence[Observer] = (),
        *,
        inference: SimInference | None = None,
        evaluation: EvaluationPlan | None = None,
    ) -> None:
        self.settings = settings
        self.world = world
        self.inference = inference or SimInference(world.engine)
        self.trainer = SimTrainer(world.trainer)
        self.checkpoints = SimCheckpoints()
        self.scheduler = Scheduler(settings)
        self.environments: list[SimEnvironment] = []
        self.ports = self._ports()
        self._journal = JournalWriter(journal)
        self._observers = observers
        self._evaluation = evaluation
        self.driver = self._make_driver()

    def replace_ports(self, **changes: Any) -> None:
        """Before the run begins: other collaborators than the simulated ones."""
        self.ports = replace(self.ports, **changes)
        self.driver = self._make_driver()

    def _make_driver(self) -> Driver:
        return Driver(
            self.scheduler,
            self.ports,
            rules_of(self.world),
            self._journal,
            self._observers,
            evaluation=self._evaluation,
        )

    async def run(self, origin: RunState = FRESH) -> Outcome:
        """Runs to the end; resumes where ``origin`` has a version above 0."""
        if origin.version:
            self.trainer.remember(sim_folder(origin.version), origin.version)
        outcome = await self.driver.run(origin)
        # Environments close in the tasks that the driver has already awaited.
        await asyncio.sleep(0)
        return outcome

    def _make_environment(self) -> SimEnvironment:
        environment = SimEnvironment(self.world.environment)
        self.environments.append(environment)
        return environment

    def _ports(self) -> Ports:
        total = self.world.device_bytes
        memory = SimMemory(self.trainer, self.inference, total) if total else None
        return Ports(
            inference=self.inference,
            trainer=self.trainer,
            transfer=SimTransfer(self.trainer, self.inference),
            measure=memory.measure if memory else None,
            make_environment=self._make_environment,
            prompts=SimPrompts(),
            tokenizer=SimTokenizer(),
            reward=None,
            checkpoints=self.checkpoints,
        )


def rules_of(world: SimSettings) -> RolloutRules:
    """How trajectories of a simulated world are played."""
    tokenizer = SimTokenizer()
    return RolloutRules(
        seed=world.seed,
        max_new_tokens=world.max_new_tokens,
        max_turns=world.max_turns,
        max_model_len=world.max_model_len,
        temperature=1.0,
        stop=(),
        stop_token_ids=(STOP_TOKEN,),
        step_timeout_s=world.step_timeout_s,
        turns=PlainTurns(tokenizer.encode, tokenizer.decode),
    )
