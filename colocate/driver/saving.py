"""Checkpoints of a run: what one holds, its writing, and what is kept of the last one."""

from __future__ import annotations

from collections.abc import Mapping

from colocate.core.actions import RateCheckpoint
from colocate.core.events import CheckpointWritten
from colocate.core.types import TrajectoryId, Version
from colocate.driver.context import Context
from colocate.run_state import RunState, SavedContent


class Saver:
    """Takes the run's state at a moment, and writes it later.

    Where the run may go back to a checkpoint, the contents of the last one are kept, and of the
    one before until the scheduler knows of the last. The trainer's own files are on the disk.
    """

    def __init__(self, context: Context) -> None:
        self._run = context
        self._kept: list[RunState] = []

    def keep(self, state: RunState) -> None:
        """What the run may go back to from now on: a checkpoint, or what it began with."""
        if self._run.scheduler.settings.max_restarts:
            self._kept = [*self._kept[-1:], state]

    def go_back(self, version: Version) -> Mapping[TrajectoryId, SavedContent]:
        """The contents of the newest that is kept of this version; others are forgotten.

        Raises:
            LookupError: there is none.
        """
        for state in reversed(self._kept):
            if state.version == version:
                self._kept = [state]
                return state.contents
        raise LookupError(f"nothing is kept of version {version} that the run could go back to")

    def state(self) -> RunState:
        """The run at this moment: after the line that has just been journaled, and no later."""
        run = self._run
        buffer = run.scheduler.snapshot()
        return RunState(
            version=run.scheduler.swapper.trainer_version,
            cursor=run.scheduler.cursor,
            learned=run.scheduler.costs.snapshot(),
            buffer=buffer,
            contents=run.floor.save(buffer),
            saved_after=None if run.is_blind else run.journal.position,
        )

    async def write(self, state: RunState) -> None:
        self._run.journal.flush()  # the state names a line of it
        await self._run.ports.checkpoints.save(self._run.ports.trainer, state)
        self.keep(state)

    def rate(self, action: RateCheckpoint) -> None:
        """Says what a checkpoint is worth, beside the loop."""
        run = self._run

        async def rate() -> None:
            try:
                await run.ports.checkpoints.rate(action.version, action.value, action.by)
            except Exception as error:
                run.fault(error)

        run.tasks.create_task(rate(), name="rating a checkpoint")

    async def write_and_tell(self, state: RunState, incarnation: int) -> None:
        """As ``write``, in a run that goes on."""
        run = self._run
        await self.write(state)
        run.post(
            CheckpointWritten(time_s=run.now_s(), incarnation=incarnation, version=state.version)
        )
