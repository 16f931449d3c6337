"""Between trajectories and the engine: a request ends with its engine, its trajectory goes on."""

from __future__ import annotations

import asyncio
import logging

from colocate.core.events import EngineLost
from colocate.core.types import FinishReason
from colocate.driver.context import Context, one_line
from colocate.ports import EngineLostError, Generation, GenerationRequest

logger = logging.getLogger(__name__)


class Lifeline:
    """A ``Generator``. What an engine that is lost owed comes back as aborted, without a token.

    What such a request had sampled is lost: an engine tells of it when it ends, or is parked.
    """

    def __init__(self, context: Context) -> None:
        self._run = context
        # In the order in which they were made, so that like runs are cut alike.
        self._pending: dict[asyncio.Task[Generation], None] = {}

    async def generate(self, request: GenerationRequest) -> Generation:
        """Raises what the engine raises, but for ``EngineLostError``: that is posted."""
        incarnation = self._run.incarnation
        call = asyncio.create_task(self._run.ports.inference.generate(request))
        self._pending[call] = None
        try:
            await asyncio.wait({call})
        except asyncio.CancelledError:
            call.cancel()
            await asyncio.wait({call})
            raise
        finally:
            del self._pending[call]
        if call.cancelled():
            return _aborted(request)
        try:
            return call.result()
        except EngineLostError as error:
            logger.warning("request %s was lost with its engine: %s", request.request_id, error)
            self._run.post(
                EngineLost(time_s=self._run.now_s(), incarnation=incarnation, error=one_line(error))
            )
            return _aborted(request)

    def cut(self) -> None:
        """Nobody waits any longer for what is pending: the engine is lost, or does not answer."""
        for call in self._pending:
            call.cancel()


def _aborted(request: GenerationRequest) -> Generation:
    return Generation(
        request_id=request.request_id,
        token_ids=(),
        logprobs=(),
        spans=(),
        finish_reason=FinishReason.ABORT,
    )
