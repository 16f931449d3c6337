"""An environment held to its contract: deadlines for its calls, checks of its answers."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable
from typing import TypeVar, get_args

from colocate.core.types import TrajectoryId
from colocate.ports import EnvironmentFactory, Prompt, Role, StepOutcome
from colocate.rollout.faults import USER_FAULTS, ends_the_task

logger = logging.getLogger(__name__)

T = TypeVar("T")


class EnvironmentFault(Exception):
    """A passing fault of an environment: the trajectory is filtered, its slot refilled."""


class GuardedEnvironment:
    """One episode's environment. Whatever is wrong with it is an ``EnvironmentFault``.

    Args:
        limit_s: ``environment.step_timeout_s``, of each call.
    """

    def __init__(
        self, make: EnvironmentFactory, trajectory: TrajectoryId, *, limit_s: float
    ) -> None:
        self._trajectory = trajectory
        self._limit_s = limit_s
        try:
            self._inner = make()
            self.is_replayable = getattr(self._inner, "is_replayable", False) is True
        except (Exception, SystemExit) as error:
            raise EnvironmentFault(f"making it raised {type(error).__name__}: {error}") from error

    async def reset(self, prompt: Prompt, seed: int) -> str:
        opening = await self._within_deadline(self._inner.reset(prompt, seed), "reset")
        check_text(opening, "reset")
        return opening

    async def step(self, action: str) -> StepOutcome:
        outcome = await self._within_deadline(self._inner.step(action), "step")
        if not isinstance(outcome, StepOutcome):
            raise EnvironmentFault(f"step returned {type(outcome).__name__}, not a StepOutcome")
        check_text(outcome.observation, "step")
        if outcome.role not in (None, *get_args(Role)):
            raise EnvironmentFault(f"step returned the role {outcome.role!r}, not user or tool")
        if not isinstance(outcome.reward, (int, float)) or not math.isfinite(outcome.reward):
            raise EnvironmentFault(
                f"step returned the reward {outcome.reward!r}, not a finite int or float"
            )
        return outcome

    async def close(self) -> None:
        """Whatever comes of it: a warning at most."""
        try:
            async with asyncio.timeout(self._limit_s):
                await self._inner.close()
        except TimeoutError:
            logger.warning("trajectory %s: its environment did not close in time", self._trajectory)
        except Exception:
            logger.warning(
                "trajectory %s: closing its environment broke", self._trajectory, exc_info=True
            )

    async def _within_deadline(self, work: Awaitable[T], what: str) -> T:
        try:
            async with asyncio.timeout(self._limit_s) as deadline:
                return await work
        except USER_FAULTS as error:
            if ends_the_task(error):
                raise
            if deadline.expired():
                raise EnvironmentFault(
                    f"{what} did not answer within environment.step_timeout_s = {self._limit_s} s"
                ) from None
            logger.warning("trajectory %s: %s broke", self._trajectory, what, exc_info=error)
            raise EnvironmentFault(f"{what} raised {type(error).__name__}: {error}") from error


def check_text(text: object, source: str) -> None:
    if not isinstance(text, str):
        raise EnvironmentFault(f"{source} returned {type(text).__name__}, not a text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # Neither a tokenizer nor a file takes lone surrogates.
        raise EnvironmentFault(
            f"{source} returned a text that is no Unicode: {error}; decode with errors='replace'"
        ) from error
