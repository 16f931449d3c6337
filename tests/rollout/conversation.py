"""One trajectory of the real runner, with an engine that samples what it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from colocate.core.events import (
    Event,
    RequestEnded,
    TrajectoryFinished,
    TrajectoryLost,
    TurnReady,
)
from colocate.core.types import FinishReason, GroupId, Span, TrajectoryId, Version
from colocate.ports import Generation, GenerationRequest, Prompt, Role, StepOutcome
from colocate.rollout.content import Content
from colocate.rollout.gate import Gate
from colocate.rollout.runner import Desk, RolloutRules, Runner, Tokenizer
from colocate.rollout.turns import PlainTurns, Turns


@dataclass(frozen=True)
class Sampled:
    """One turn: its tokens, and whether the park or the limit cut it where it ends."""

    tokens: tuple[int, ...]
    finish: FinishReason = FinishReason.STOP


@dataclass
class ToldEngine:
    """Has ``generate`` only, which is all that a runner calls."""

    script: list[Sampled]
    prompts: list[list[int]] = field(default_factory=list)

    async def generate(self, request: GenerationRequest) -> Generation:
        self.prompts.append(list(request.prompt_token_ids))
        sampled = self.script.pop(0)
        return Generation(
            request_id=request.request_id,
            token_ids=sampled.tokens,
            logprobs=[-1.0 - 0.001 * token for token in sampled.tokens],
            spans=(Span(version=Version(len(self.prompts)), length=len(sampled.tokens)),),
            finish_reason=sampled.finish,
        )


class Replies:
    """Says one thing after the other; ends with the action after the last."""

    def __init__(self, observations: Sequence[str], role: Role | None) -> None:
        self._observations = list(observations)
        self._role = role
        self.actions: list[str] = []

    async def reset(self, prompt: Prompt, seed: int) -> str:
        return ""

    async def step(self, action: str) -> StepOutcome:
        self.actions.append(action)
        if not self._observations:
            return StepOutcome(observation="", reward=1.0, done=True)
        return StepOutcome(observation=self._observations.pop(0), role=self._role)

    async def close(self) -> None:
        return


@dataclass
class Played:
    content: Content
    actions: list[str]
    prompts: list[list[int]]
    ending: TrajectoryFinished | TrajectoryLost

    def runs(self, mask: int) -> list[list[int]]:
        """Stretches of tokens with this mask, in order."""
        found: list[list[int]] = []
        before = None
        for token, bit in zip(self.content.token_ids, self.content.loss_mask, strict=True):
            if bit == mask:
                if before != mask:
                    found.append([])
                found[-1].append(token)
            before = bit
        return found


async def play(
    tokenizer: Tokenizer,
    turns: Turns | None,
    prompt: Prompt,
    script: Sequence[Sampled],
    observations: Sequence[str],
    *,
    role: Role | None = None,
    stop: tuple[str, ...] = (),
    stop_token_ids: tuple[int, ...] = (),
    max_model_len: int = 100_000,
    max_new_tokens: int = 10_000,
) -> Played:
    engine, events = ToldEngine(list(script)), list[Event]()
    environment = Replies(observations, role)
    gate = Gate()

    def post(event: Event) -> None:
        events.append(event)
        aborted = isinstance(event, RequestEnded) and event.finish_reason is FinishReason.ABORT
        if aborted or isinstance(event, TurnReady):
            request = f"request-{len(events)}"
            asyncio.get_running_loop().call_soon(gate.let_through, TrajectoryId(0), request)

    desk = Desk(
        inference=engine,  # type: ignore[arg-type]
        gate=gate,
        tokenizer=tokenizer,
        make_environment=lambda: environment,
        reward=None,
        rules=RolloutRules(
            seed=0,
            max_new_tokens=max_new_tokens,
            max_turns=20,
            max_model_len=max_model_len,
            temperature=1.0,
            stop=stop,
            stop_token_ids=stop_token_ids,
            step_timeout_s=60.0,
            turns=turns or PlainTurns(tokenizer.encode, tokenizer.decode),
        ),
        now_s=lambda: 0.0,
        post=post,
    )
    content = Content()
    runner = Runner(desk, content, prompt, trajectory=TrajectoryId(0), group=GroupId(0), attempt=0)
    await runner.run()
    ending = events[-1]
    assert isinstance(ending, TrajectoryFinished | TrajectoryLost)
    return Played(content, environment.actions, engine.prompts, ending)
