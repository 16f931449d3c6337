"""The end of a run: everything is closed once, within a limit, and what broke is reported."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial

from colocate.core import actions as act
from colocate.core.events import PhaseEnded
from colocate.core.phases import Phase
from colocate.driver.context import Context
from colocate.driver.operations import Operations
from colocate.driver.saving import Saver
from colocate.run_state import RunState

logger = logging.getLogger(__name__)

LET_GO_S = 5.0
"""For the rest of a closing that missed its deadline, and then for noticing its cancellation."""


class Closing:
    """``is_over`` is set when everything is closed, or given up."""

    def __init__(self, context: Context, operations: Operations, saver: Saver) -> None:
        self._run = context
        self._operations = operations
        self._saver = saver
        self._has_begun = False
        self.is_over = asyncio.Event()

    def close(self, action: act.CloseRun) -> None:
        """Closes once, within a limit; the run's guard ends the processes that are left.

        Asked again (a deadline, or a fault elsewhere while closing), it only shortens the limit.
        """
        run, operations = self._run, self._operations
        run.gate.is_open = False
        limit_s = LET_GO_S
        if not self._has_begun:
            self._has_begun = True
            state, unfinished = self._last_state(action), operations.current
            operations.operate(lambda _: self._close_ports(state, unfinished))
            if run.scheduler.phase is not Phase.FAILED:
                return  # the scheduler watches its deadline
            limit_s = run.scheduler.settings.phase_timeout_s
        assert operations.current is not None
        run.tasks.create_task(self._let_go(operations.current, limit_s), name="letting go")

    async def _let_go(self, closing: asyncio.Task[None], limit_s: float) -> None:
        await asyncio.wait([closing], timeout=limit_s)
        if not closing.done():
            logger.error("closing has not ended within %s s and is given up", limit_s)
            closing.cancel()
            await asyncio.wait([closing], timeout=LET_GO_S)
        self._report()

    def _last_state(self, action: act.CloseRun) -> RunState | None:
        """Closing goes on without a checkpoint where it cannot be told."""
        try:
            return self._saver.state() if action.checkpoint else None
        except Exception as error:
            self._run.fault(error)
            return None

    async def _close_ports(
        self, state: RunState | None, unfinished: asyncio.Task[None] | None
    ) -> None:
        """Where one part breaks the others follow; what broke is reported when all are through."""
        if unfinished is not None:
            unfinished.cancel()
            await asyncio.wait([unfinished])
        run = self._run
        errors: list[Exception] = []
        engine, trainer = run.ports.inference, run.ports.trainer

        async def close(*parts: Callable[[], Awaitable[None]]) -> None:
            ended = await asyncio.gather(*(part() for part in parts), return_exceptions=True)
            errors.extend(error for error in ended if isinstance(error, Exception))

        try:
            if run.evaluator is not None:
                await close(run.evaluator.close)
            await close(run.floor.close)
            if state is None:
                await close(engine.close, trainer.close)
            else:
                # The trainer that is loaded for the checkpoint may need the engine's memory.
                await close(engine.close)
                await close(partial(self._load_and_save, state))
                await close(trainer.close)
        finally:
            for broken in errors:
                run.fault(broken)
        self._report()

    async def _load_and_save(self, state: RunState) -> None:
        await self._run.ports.trainer.load()
        await self._saver.write(state)

    def _report(self) -> None:
        if not self.is_over.is_set():
            self.is_over.set()
            run = self._run
            run.post(
                PhaseEnded(time_s=run.now_s(), incarnation=run.incarnation, phase=Phase.CLOSING)
            )
