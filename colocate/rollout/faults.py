"""What somebody else's code may raise, and how it is told from an end that was asked for."""

from __future__ import annotations

import asyncio

USER_FAULTS = (Exception, SystemExit, asyncio.CancelledError)
"""What somebody else's code may raise at worst: ``sys.exit()`` would end the event loop, and a
cancellation of its own making would end the trajectory's task without a word."""


def ends_the_task(error: BaseException) -> bool:
    """Whether it is a cancellation that was asked for, and not one that user code came up with."""
    task = asyncio.current_task()
    assert task is not None
    return isinstance(error, asyncio.CancelledError) and task.cancelling() > 0
