"""What becomes of a run when a process of it is lost: it goes on, as long as that is of use.

    engine lost   --> STARTING: a new engine, parked; then its weights are published anew by the
                      ordinary phases. Trajectories stay: what a request had sampled and not told
                      is lost with the engine, what was told before is kept, parked.
    trainer lost  --> STARTING: back to the last checkpoint (``colocate.core.rollback``), trainer
                      and engine anew.
    while closing, or too often (``supervision.max_restarts``) --> the run ends, with the cause.

A process that hangs is found by the deadline of the phase that waits for it, and is lost like one
that died. An engine that is lost while the trainer is at work is started when that is done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from colocate.core.actions import (
    Action,
    OffloadTrainer,
    ResumeTrajectory,
    RollBack,
    StartTrajectory,
    Warn,
)
from colocate.core.admission import PromptStream, RequestQueue
from colocate.core.books import Books
from colocate.core.buffer import Buffer
from colocate.core.buffer_snapshot import BufferSnapshot
from colocate.core.cost import CostModel
from colocate.core.events import (
    CheckpointWritten,
    EngineLost,
    Event,
    Restored,
    RunStarted,
    TrainerLost,
)
from colocate.core.phases import Phase
from colocate.core.restarts import Process, Restarts
from colocate.core.rollback import Abandoned, RestorePoint, take_back
from colocate.core.settings import Settings
from colocate.core.swap_recovery import RecoverableSwapper
from colocate.core.trajectory import ProtocolError


class Recovery:
    """Decides on what is lost; keeps what a rollback goes back to, where there may be one."""

    def __init__(
        self,
        settings: Settings,
        swapper: RecoverableSwapper,
        buffer: Buffer,
        requests: RequestQueue,
        books: Books,
        costs: CostModel,
    ) -> None:
        self.restarts = Restarts(settings.max_restarts, settings.restart_window_s)
        self.abandoned = Abandoned()
        self.num_rollbacks = 0
        self.prompts: PromptStream | None = None
        self._is_possible = settings.max_restarts > 0
        self._swapper = swapper
        self._buffer = buffer
        self._requests = requests
        self._books = books
        self._costs = costs
        self._highest_attempt = 0
        self._point: RestorePoint | None = None
        self._pending: RestorePoint | None = None

    def summary(self) -> dict[str, Any]:
        """The section ``recoveries`` of ``summary.json``."""
        return {
            **self.restarts.summary(),
            "rollbacks": self.num_rollbacks,
            "abandoned": {
                "steps": self.abandoned.steps,
                "trajectories": self.abandoned.trajectories,
                "tokens": self.abandoned.tokens,
            },
            "taken_back": self._books.taken_back.summary(),
        }

    # What a rollback goes back to

    def observe(self, event: Event, actions: Sequence[Action]) -> None:
        """After each line of the journal: puts aside what the run is, where a checkpoint does."""
        if not self._is_possible:
            return
        for action in actions:
            if isinstance(action, StartTrajectory | ResumeTrajectory):
                self._highest_attempt = max(self._highest_attempt, action.attempt)
            elif isinstance(action, OffloadTrainer) and action.checkpoint:
                self._pending = self._take()
        if isinstance(event, RunStarted | Restored):
            self._point = self._take()
            attempts = (trajectory.attempt for trajectory in self._buffer)
            self._highest_attempt = max((self._highest_attempt, *attempts))

    def checkpoint_written(self, event: CheckpointWritten) -> list[Action]:
        """From here on a rollback goes back to it."""
        if self._is_possible and self._pending is None:
            raise ProtocolError(f"a checkpoint of version {event.version} was not asked for")
        actions = self._swapper.saved(event.version, event.time_s)
        if self._is_possible:
            self._point, self._pending = self._pending, None
        return actions

    def _take(self) -> RestorePoint:
        assert self.prompts is not None
        version, cursor = self._swapper.trainer_version, self.prompts.cursor
        return RestorePoint.take(version, cursor, self._snapshot(), self._books)

    def _snapshot(self) -> BufferSnapshot:
        replays = self._swapper.replays
        return BufferSnapshot(residents=self._buffer.snapshot(), replays=replays.snapshot())

    # What is lost

    def engine_lost(self, event: EngineLost) -> list[Action]:
        return self.lose(Process.ENGINE, event.error, event.time_s)

    def trainer_lost(self, event: TrainerLost) -> list[Action]:
        return self.lose(Process.TRAINER, event.error, event.time_s)

    def lose(self, process: Process, cause: str, time_s: float) -> list[Action]:
        """A process is lost, or taken for lost since it does not answer."""
        swapper = self._swapper
        is_trainer = process is Process.TRAINER
        if swapper.phase is Phase.CLOSING:
            return []  # what is being closed need not live; a checkpoint that fails is a fault
        if swapper.is_stopping:
            return swapper.stop_without(process, cause, time_s)
        if process is Process.ENGINE and swapper.engine_is_lost:
            return swapper.lose_engine(time_s)  # it is known, and was counted
        if not self.restarts.allow(process, cause, time_s):
            error = self.restarts.explain_refusal(cause)
            return swapper.fail(error, time_s, trainer_is_lost=is_trainer)
        return self._roll_back(cause, time_s) if is_trainer else self._replace_engine(cause, time_s)

    def _replace_engine(self, cause: str, time_s: float) -> list[Action]:
        warning = f"the engine was lost in {self._swapper.phase}, and is started anew: {cause}"
        return [self._warn(warning), *self._swapper.lose_engine(time_s)]

    def _roll_back(self, cause: str, time_s: float) -> list[Action]:
        point = self._point
        if point is None or self.prompts is None:
            raise ProtocolError("nothing can be lost before a run has begun")
        swapper, lost_in = self._swapper, self._swapper.phase
        abandoned = Abandoned.between(point, self._books)
        self._highest_attempt += 1
        self._requests.give_up_all()
        taken_back = take_back(
            point,
            self._buffer,
            swapper.replays,
            self._books,
            attempt=self._highest_attempt,
            time_s=time_s,
        )
        self.prompts.go_back(point.cursor)
        self._costs.take_up(self._snapshot(), time_s)
        self._pending = None
        self.abandoned.add(abandoned)
        self.num_rollbacks += 1
        started = swapper.roll_back(point.version, time_s)
        roll_back = RollBack(
            version=point.version,
            incarnation=swapper.incarnation,
            attempt=self._highest_attempt,
            steps=abandoned.steps,
            trajectories=abandoned.trajectories,
            tokens=abandoned.tokens,
            reason=cause,
        )
        warning = self._warn(
            f"the trainer was lost in {lost_in}, and the run goes back to version "
            f"{point.version}: {abandoned.steps} training steps and {abandoned.tokens} tokens are "
            f"abandoned: {cause}"
        )
        return [warning, roll_back, *taken_back, *started]

    def _warn(self, message: str) -> Warn:
        self._books.warnings.append(message)
        return Warn(message=message)
