"""The reward of a run: one function, or a weighted sum of several."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from colocate.config import RewardConfig, RewardTerm
from colocate.rewards.functions import Prepared, UnfitRewardError, load, shape_of
from colocate.rewards.pool import WorkerPool
from colocate.rollout.faults import USER_FAULTS, ends_the_task
from colocate.rollout.runner import Episode, RewardFault, Score

logger = logging.getLogger(__name__)


def make_reward(
    config: RewardConfig,
    *,
    timeout_s: float,
    end_texts: Sequence[str] = (),
    log: Path | None = None,
) -> WeightedReward | None:
    """The configured functions, ready to be called; None where the environment alone rewards.

    Args:
        config: Import paths have been checked.
        timeout_s: Deadline of a function on one trajectory, where the configuration has none.
        end_texts: The model's end-of-text tokens as text: they are cut off the agent's turns
            before a function sees them.
        log: Gets what functions print that run in processes of their own.
    """
    if not config.terms:
        return None
    return WeightedReward(
        config.terms,
        timeout_s=config.timeout_s or timeout_s,
        num_workers=config.num_workers,
        end_texts=end_texts,
        log=log,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Term:
    """``prepared`` is None where it is called in a worker process."""

    config: RewardTerm
    prepared: Prepared | None


class WeightedReward:
    """``sum of weight x function``, all functions at the same time.

    Functions that are `async` run on the event loop, others in worker processes.
    """

    def __init__(
        self,
        terms: Sequence[RewardTerm],
        *,
        timeout_s: float,
        num_workers: int,
        end_texts: Sequence[str] = (),
        log: Path | None = None,
    ) -> None:
        self._terms = [
            _Term(
                config=term,
                prepared=Prepared(term.function, term.options)
                if shape_of(load(term.function)).is_async
                else None,
            )
            for term in terms
        ]
        self._timeout_s = timeout_s
        self._end_texts = tuple(end_texts)
        self.pool = WorkerPool(
            [(term.function, term.options) for term in terms], size=num_workers, log=log
        )

    async def __call__(self, episode: Episode) -> Score:
        """Runs every function.

        Raises:
            RewardFault: one raised, hung, or returned no finite number; or none had a reward.
        """
        episode = self._without_ends(episode)
        tasks = [
            asyncio.create_task(self._value(index, term, episode))
            for index, term in enumerate(self._terms)
        ]
        try:
            values = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        parts = {
            term.config.label: value
            for term, value in zip(self._terms, values, strict=True)
            if value is not None
        }
        if not parts:
            raise RewardFault("no reward function had a reward for this trajectory")
        total = sum(
            term.config.weight * parts[term.config.label]
            for term in self._terms
            if term.config.label in parts
        )
        if not math.isfinite(total):
            raise RewardFault(f"the weighted sum of the rewards is {total}")
        return Score(value=total, parts=parts)

    async def close(self) -> None:
        await self.pool.close()
        for term in self._terms:
            if term.prepared is not None:
                await term.prepared.close()

    async def _value(self, index: int, term: _Term, episode: Episode) -> float | None:
        try:
            if term.prepared is None:
                return await self.pool.call(index, episode, self._timeout_s)
            return await self._on_the_loop(term.prepared, episode)
        except RewardFault as fault:
            raise RewardFault(f"the reward `{term.config.label}` {fault}") from fault

    async def _on_the_loop(self, prepared: Prepared, episode: Episode) -> float | None:
        try:
            async with asyncio.timeout(self._timeout_s) as deadline:
                return prepared.value(await prepared(episode))
        except UnfitRewardError as error:
            raise RewardFault(str(error)) from error
        except USER_FAULTS as error:
            if ends_the_task(error):
                raise
            if deadline.expired():
                raise RewardFault(f"did not answer within {self._timeout_s:g} s") from None
            logger.warning("a reward function broke", exc_info=error)
            raise RewardFault(f"raised {type(error).__name__}: {error}") from error

    def _without_ends(self, episode: Episode) -> Episode:
        turns = tuple(
            (speaker, self._cut(text) if speaker == "agent" else text)
            for speaker, text in episode.turns
        )
        return replace(episode, turns=turns)

    def _cut(self, text: str) -> str:
        for end in self._end_texts:
            text = text.removesuffix(end)
        return text
