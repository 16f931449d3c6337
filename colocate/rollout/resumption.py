"""Brings a fresh environment to where that of an earlier life was, by the recorded actions.

Only where the environment says that it can be replayed (``Environment.is_replayable``), and only if
it then answers as it did: a partial must not go on from answers that its tokens do not know.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from colocate.ports import Prompt
from colocate.rollout.content import Content
from colocate.rollout.guarded import GuardedEnvironment, check_text
from colocate.rollout.turns import as_text


class NotResumed(Exception):
    """The trajectory must begin again; the text is the reason that the books count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """``reward`` and ``facts`` as the environment had given them so far."""

    num_steps: int
    reward: float
    facts: Mapping[str, Any] = field(default_factory=dict)


async def replay(environment: GuardedEnvironment, prompt: Prompt, content: Content) -> Replayed:
    """Resets it with the same seed, and takes every answered action again.

    Raises:
        NotResumed: it cannot be replayed, or answers otherwise than is recorded.
        EnvironmentFault: it broke.
    """
    if not environment.is_replayable:
        raise NotResumed("its environment cannot be replayed (is_replayable is not True)")
    opening = await environment.reset(prompt, content.environment_seed)
    check_text(prompt.text, "the prompt source")
    (_, recorded_opening), *turns = content.turns
    if as_text(prompt) + opening != recorded_opening:
        raise NotResumed("its prompt, or its environment's opening, is no longer as recorded")
    reward = 0.0
    facts: Mapping[str, Any] = {}
    answered = list(zip(turns[::2], turns[1::2], content.rewards, strict=False))
    for (_, action), (_, observation), recorded_reward in answered:
        outcome = await environment.step(action)
        if outcome.done or outcome.invalid:
            raise NotResumed("its environment, replayed, ended where it had gone on")
        if (outcome.observation, outcome.reward) != (observation, recorded_reward):
            raise NotResumed("its environment, replayed, answered otherwise than is recorded")
        reward += outcome.reward
        facts = {**facts, **outcome.facts}
    return Replayed(num_steps=len(answered), reward=reward, facts=facts)
