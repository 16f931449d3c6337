"""What a checkpoint is worth where no evaluation says it: the mean reward of its last steps."""

from __future__ import annotations

from statistics import fmean

from colocate.core.actions import Action, RateCheckpoint
from colocate.core.books import Books
from colocate.core.settings import Settings
from colocate.core.types import Version


def rate_by_reward(
    settings: Settings, books: Books, since: Version, version: Version
) -> list[Action]:
    """Rates the checkpoint of ``version`` by the steps after that of ``since``.

    A step's reward is that of the weights that sampled it, which are older than the checkpoint's by
    the lag: a mean over steps, and no more than that. Evaluations rate better, where there are any.
    """
    if not settings.keep_best or settings.eval_every_steps:
        return []
    rewards = books.rewards.between(since, version)
    if not rewards:
        return []
    return [RateCheckpoint(version=version, value=fmean(rewards), by="train/reward_mean")]
