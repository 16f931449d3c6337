"""One episode of a run's own environment, played by the code that plays it in a run."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from colocate.adapters.environments.factory import make_environment_factory
from colocate.assembly import make_run_data
from colocate.chat.model import ChatError, Engine, TrainedModel
from colocate.core.events import Event, TrajectoryFinished, TrajectoryLost
from colocate.core.types import GroupId, TrajectoryId
from colocate.ports import Inference, Prompt
from colocate.rewards.weighted import make_reward
from colocate.rollout.content import Content
from colocate.rollout.gate import Gate
from colocate.rollout.runner import Desk, RolloutRules, Runner
from colocate.run_state import Speaker

OnTurn = Callable[[Speaker, str], None]
"""Told of each turn once it is over."""

_ONLY = TrajectoryId(0)


@dataclass(frozen=True, slots=True, kw_only=True)
class EpisodeEnd:
    """How an episode ended.

    Attributes:
        reward: None where it was lost.
        parts: Of ``reward``, by function, before weights; empty where the environment rewards.
        truncated: What cut it short, as the configuration names it.
        invalid: Whether the environment called it invalid.
        lost: Why it was lost; empty where it was not.
        num_sampled_tokens: The model's.
    """

    reward: float | None
    parts: Mapping[str, float]
    truncated: str | None
    invalid: bool
    lost: str
    num_sampled_tokens: int


class _OpenGate(Gate):
    """Nothing else wants the engine, so every request may be made at once."""

    def __init__(self) -> None:
        super().__init__()
        self._num_requests = 0

    async def wait(self, trajectory: TrajectoryId) -> str:
        self._num_requests += 1
        return f"episode-{self._num_requests}"


class _Watcher:
    """Takes the events of the episode: tells of turns, and keeps how it ended."""

    def __init__(self, content: Content, on_turn: OnTurn) -> None:
        self._content = content
        self._on_turn = on_turn
        self._num_told = 0
        self.last: Event | None = None

    def post(self, event: Event) -> None:
        self.last = event
        turns = self._content.turns
        for turn in turns[self._num_told :]:
            self._on_turn(*turn)
        self._num_told = len(turns)


def find_prompt(model: TrainedModel, position: int) -> Prompt:
    """A prompt of the run: of its evaluation split where it has one, else of its training stream.

    Raises:
        ChatError: the split has fewer.
        ConfigurationError: the data set cannot be used.
    """
    data = make_run_data(model.config, model.tokenizer)
    if data.evaluation is None:
        return data.prompts.prompt(GroupId(position))
    if position >= len(data.evaluation):
        raise ChatError(
            f"--episode {position}: the evaluation split has {len(data.evaluation)} prompts, "
            "numbered from 0"
        )
    return data.evaluation[position]


async def play(
    model: TrainedModel,
    engine: Engine,
    rules: RolloutRules,
    position: int,
    on_turn: OnTurn,
    *,
    log: Path,
) -> EpisodeEnd:
    """Plays the episode of the prompt at a position; ``log`` takes what reward functions print.

    Raises:
        ChatError: as ``find_prompt``; or the environment cannot be made.
        ConfigurationError: as ``find_prompt``.
    """
    config, tokenizer = model.config, model.tokenizer
    prompt = find_prompt(model, position)
    try:
        make_environment = make_environment_factory(config.environment)
    except ValueError as error:
        raise ChatError(str(error)) from error
    content = Content()
    watcher = _Watcher(content, on_turn)
    reward = make_reward(
        config.reward,
        timeout_s=config.environment.step_timeout_s,
        end_texts=[tokenizer.decode([token]) for token in tokenizer.end_tokens()],
        log=log,
    )
    desk = Desk(
        inference=_as_inference(engine),
        gate=_OpenGate(),
        tokenizer=tokenizer,
        make_environment=make_environment,
        reward=reward,
        rules=rules,
        now_s=time.monotonic,
        post=watcher.post,
    )
    try:
        runner = Runner(desk, content, prompt, trajectory=_ONLY, group=GroupId(position), attempt=0)
        await runner.run()
    finally:
        if reward is not None:
            await reward.close()
    ended = watcher.last
    assert isinstance(ended, (TrajectoryFinished, TrajectoryLost))
    finished = isinstance(ended, TrajectoryFinished)
    return EpisodeEnd(
        reward=ended.reward if isinstance(ended, TrajectoryFinished) else None,
        parts=content.reward_parts if finished else {},
        truncated=ended.truncated if isinstance(ended, TrajectoryFinished) else None,
        invalid=isinstance(ended, TrajectoryFinished) and ended.masked,
        lost=ended.reason if isinstance(ended, TrajectoryLost) else "",
        num_sampled_tokens=sum(content.loss_mask),
    )


def _as_inference(engine: Engine) -> Inference:
    """A runner asks its engine for nothing but generations."""
    return engine  # type: ignore[return-value]
