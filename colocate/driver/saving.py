"""Checkpoints of a run: what one holds, and its writing."""

from __future__ import annotations

from colocate.driver.context import Context
from colocate.run_state import RunState


class Saver:
    """Takes the run's state at a moment, and writes it later."""

    def __init__(self, context: Context) -> None:
        self._run = context

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
