"""One trajectory, one task: generate, environment step, generate, and so on to its end.

          reset            generate             step / reward
    TurnReady --> [gate] --> RequestEnded --> TurnReady ... --> TrajectoryFinished
                    ^            |
                    +-- abort ---+   a park cut the turn: wait at the gate, go on from its tokens

    A trajectory of an earlier life comes in at the gate, or at its step: EpisodeResumed.

Environment steps and rewards never wait for the gate; every one has a deadline.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from colocate.core.events import (
    EpisodeNotResumed,
    EpisodeResumed,
    Event,
    RequestEnded,
    TrajectoryFinished,
    TrajectoryLost,
    TurnReady,
)
from colocate.core.types import Ending, FinishReason, GroupId, Span, TrajectoryId
from colocate.ports import (
    EnvironmentFactory,
    Generation,
    GenerationRequest,
    Generator,
    Prompt,
    StepOutcome,
)
from colocate.rollout.content import Content
from colocate.rollout.gate import Gate
from colocate.rollout.guarded import EnvironmentFault, GuardedEnvironment, check_text
from colocate.rollout.resumption import NotResumed, replay
from colocate.rollout.seam import cut_at_stop
from colocate.rollout.turns import Turns, as_text
from colocate.run_state import Speaker

logger = logging.getLogger(__name__)


class Tokenizer(Protocol):
    def encode(self, text: str) -> list[int]:
        """Tokens of a text, without special tokens added."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens, special ones included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """What a reward function sees of a finished trajectory. ``turns`` are (speaker, text)."""

    prompt: Prompt
    turns: Sequence[tuple[str, str]]
    environment_reward: float
    facts: Mapping[str, Any]

    @property
    def completion(self) -> str:
        """All that came after the prompt, the environment's answers included."""
        return "".join(text for speaker, text in self.turns if speaker != "prompt")

    @property
    def last_turn(self) -> str:
        """The agent's, without what the environment said after it."""
        return next((text for speaker, text in reversed(self.turns) if speaker == "agent"), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """A trajectory's reward, and what it was added up from, by name and before weights."""

    value: float
    parts: Mapping[str, float]


class RewardFunction(Protocol):
    """What rewards a finished trajectory in place of its environment."""

    async def __call__(self, episode: Episode) -> Score:
        """Never blocks the event loop.

        Raises:
            RewardFault: no finite number came of it; the message says why.
        """

    async def close(self) -> None:
        """Ends what it has started. Safe to call twice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRules:
    """Lengths in tokens, times in seconds.

    ``turns``: how conversations become tokens.
    """

    seed: int
    max_new_tokens: int
    max_turns: int
    max_model_len: int
    temperature: float
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    step_timeout_s: float
    turns: Turns


class RewardFault(Exception):
    """A reward function broke: the trajectory has failed."""


@dataclass(slots=True, kw_only=True)
class Desk:
    """What all runners of a run share."""

    inference: Generator
    gate: Gate
    tokenizer: Tokenizer
    make_environment: EnvironmentFactory
    reward: RewardFunction | None
    rules: RolloutRules
    now_s: Callable[[], float]
    post: Callable[[Event], None]


def derive_seed(run: int, group: int, trajectory: int, attempt: int, *purpose: object) -> int:
    """Of run, prompt, trajectory, attempt and purpose: no two draws share one.

    The prompt is among them since a run that resumes without its buffer numbers from 0 again.
    """
    name = repr((run, group, trajectory, attempt, *purpose))
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")


class Runner:
    """Runs one attempt at one trajectory. Cancelling its task ends it quietly.

    A content that has turns already is of an earlier life: it is gone on from.

    ``is_over``: it has posted its last event, and at most closes its environment.
    """

    def __init__(
        self,
        desk: Desk,
        content: Content,
        prompt: Prompt,
        *,
        trajectory: TrajectoryId,
        group: GroupId,
        attempt: int,
    ) -> None:
        self._desk = desk
        self._content = content
        self._prompt = prompt
        self._trajectory = trajectory
        self._group = group
        self._attempt = attempt
        self._turns = desk.rules.turns
        self._began_s = desk.now_s()
        self._reward = 0.0
        self._facts: Mapping[str, Any] = {}
        self._is_resuming = bool(content.turns)
        self.is_over = False

    async def run(self) -> None:
        """Posts events until the trajectory is finished, lost, or cannot be resumed."""
        desk = self._desk
        environment: GuardedEnvironment | None = None
        try:
            environment = GuardedEnvironment(
                desk.make_environment, self._trajectory, limit_s=desk.rules.step_timeout_s
            )
            await self._play(environment)
        except NotResumed as reason:
            self._begin_again(str(reason))
        except EnvironmentFault as fault:
            if self._is_resuming:
                self._begin_again(f"its environment broke when it was replayed: {fault}")
            else:
                self._lose(Ending.FILTERED, str(fault))
        except RewardFault as fault:
            self._lose(Ending.FAILED, str(fault))
        finally:
            self.is_over = True
            if environment is not None:
                await environment.close()

    async def _play(self, environment: GuardedEnvironment) -> None:
        content, max_turns = self._content, self._desk.rules.max_turns
        if self._is_resuming:
            await self._resume(environment)
        else:
            await self._begin(environment)
        while True:
            if not content.awaits_answer:
                await self._take_turn()
            self._start_clock()
            outcome = await environment.step(content.turns[-1][1])
            self._reward += outcome.reward
            self._facts = {**self._facts, **outcome.facts}
            cut_by = content.cut_by
            over = outcome.done or outcome.invalid
            if not over and content.num_actions >= max_turns:
                over, cut_by = True, "rollout.max_turns"
            # An observation that leaves no room for a turn ends the trajectory without it.
            elif not over and not self._answer(outcome):
                over, cut_by = True, "inference.max_model_len"
            if over:
                await self._finish(outcome, truncated=None if outcome.invalid else cut_by)
                return

    async def _begin(self, environment: GuardedEnvironment) -> None:
        self._start_clock()
        self._content.environment_seed = self._seed("environment")
        opening = await environment.reset(self._prompt, self._content.environment_seed)
        check_text(self._prompt.text, "the prompt source")
        for message in self._prompt.history:
            check_text(message["content"], "the prompt source")
        tokens = self._tokens(lambda: self._turns.opening(self._prompt, opening))
        if not self._observe("prompt", as_text(self._prompt) + opening, tokens):
            raise EnvironmentFault(
                "a prompt leaves no room for a turn within inference.max_model_len = "
                f"{self._desk.rules.max_model_len} tokens"
            )

    async def _resume(self, environment: GuardedEnvironment) -> None:
        """Brings the environment to where the content is, which nothing is appended to."""
        content, desk = self._content, self._desk
        self._start_clock()
        if not content.awaits_answer and self._room_for_turn() <= self._num_turn_tokens():
            raise NotResumed(
                "its turn has no room left: rollout.max_new_tokens or inference.max_model_len "
                "is smaller than before"
            )
        replayed = await replay(environment, self._prompt, content)
        self._reward, self._facts = replayed.reward, replayed.facts
        self._is_resuming = False
        now_s = desk.now_s()
        desk.post(
            EpisodeResumed(
                time_s=now_s,
                trajectory=self._trajectory,
                attempt=self._attempt,
                num_steps=replayed.num_steps,
                busy_s=now_s - self._began_s,
                base=content.digest(),
            )
        )

    def _begin_again(self, reason: str) -> None:
        now_s = self._desk.now_s()
        self._desk.post(
            EpisodeNotResumed(
                time_s=now_s,
                trajectory=self._trajectory,
                attempt=self._attempt,
                reason=reason,
                busy_s=now_s - self._began_s,
            )
        )

    # Turns

    def _room_for_turn(self) -> int:
        """Tokens that the turn may have that begins where the last one has ended."""
        rules = self._desk.rules
        return min(rules.max_new_tokens, rules.max_model_len - self._content.turn_ends[-1])

    def _num_turn_tokens(self) -> int:
        return len(self._content) - self._content.turn_ends[-1]

    async def _take_turn(self) -> None:
        """Generates one turn, or the rest of one, over as many parks as it takes."""
        desk = self._desk
        begins_at = self._content.turn_ends[-1]
        room = self._room_for_turn()
        while True:
            request = await desk.gate.wait(self._trajectory)
            num_left = room - self._num_turn_tokens()
            base = self._content.digest()
            generation = await self._generate(request, num_left)
            sampled = self._content.token_ids[begins_at:].tolist()
            kept, finish_reason = cut_at_stop(
                sampled, generation, desk.rules.stop, desk.tokenizer.decode
            )
            if finish_reason is FinishReason.ABORT and kept == num_left:
                finish_reason = FinishReason.LENGTH  # the park came with the turn's last token
            spans = _cut_spans(generation.spans, kept)
            self._content.append_sampled(
                generation.token_ids[:kept], generation.logprobs[:kept], spans
            )
            desk.post(
                RequestEnded(
                    time_s=desk.now_s(),
                    trajectory=self._trajectory,
                    attempt=self._attempt,
                    request=request,
                    finish_reason=finish_reason,
                    spans=spans,
                    num_cached_tokens=generation.num_cached_tokens,
                    base=base,
                    digest=self._content.digest(),
                    num_dropped_tokens=len(generation.token_ids) - kept,
                )
            )
            if finish_reason is not FinishReason.ABORT:
                self._content.cut_by = self._what_cut(finish_reason, room)
                action = self._turns.action(self._content.token_ids[begins_at:].tolist())
                self._content.say("agent", action)
                return

    def _what_cut(self, finish_reason: FinishReason, room: int) -> str | None:
        """A turn whose last token that had room happens to be a stop token was not cut."""
        rules = self._desk.rules
        if (
            finish_reason is FinishReason.STOP
            or self._content.token_ids[-1] in rules.stop_token_ids
        ):
            return None
        fits = room == rules.max_new_tokens
        return "rollout.max_new_tokens" if fits else "inference.max_model_len"

    async def _generate(self, request: str, max_new_tokens: int) -> Generation:
        desk = self._desk
        if not desk.gate.is_open:
            return Generation(
                request_id=request,
                token_ids=(),
                logprobs=(),
                spans=(),
                finish_reason=FinishReason.ABORT,
            )
        return await desk.inference.generate(
            GenerationRequest(
                request_id=request,
                prompt_token_ids=self._content.token_ids.tolist(),
                max_new_tokens=max_new_tokens,
                seed=self._seed("request", len(self._content)),
                temperature=desk.rules.temperature,
                stop_token_ids=desk.rules.stop_token_ids,
                stop=desk.rules.stop,
                affinity=str(self._trajectory),
            )
        )

    def _seed(self, *purpose: object) -> int:
        whose = (self._desk.rules.seed, self._group, self._trajectory, self._attempt)
        return derive_seed(*whose, *purpose)

    # The environment's side

    def _start_clock(self) -> None:
        self._began_s = self._desk.now_s()

    def _tokens(self, write: Callable[[], list[int]]) -> list[int]:
        """A chat template is somebody else's code too."""
        try:
            return write()
        except Exception as error:
            raise EnvironmentFault(f"a message cannot be written as tokens: {error}") from error

    def _answer(self, outcome: StepOutcome) -> bool:
        text, last_token = outcome.observation, self._content.token_ids[-1]
        tokens = self._tokens(lambda: self._turns.observation(text, outcome.role, last_token))
        return self._observe("environment", text, tokens, outcome.reward)

    def _observe(
        self, speaker: Speaker, text: str, observed: Sequence[int], reward: float | None = None
    ) -> bool:
        """Appends text and reports that the trajectory wants to be generated on.

        Returns False, and does nothing, where no turn would have room after it.
        """
        if len(self._content) + len(observed) >= self._desk.rules.max_model_len:
            return False
        base = self._content.digest()
        self._content.append_observed(observed)
        self._content.say(speaker, text)
        if reward is not None:
            self._content.rewards.append(reward)
        now_s = self._desk.now_s()
        self._desk.post(
            TurnReady(
                time_s=now_s,
                trajectory=self._trajectory,
                attempt=self._attempt,
                num_context_tokens=len(self._content),
                busy_s=now_s - self._began_s,
                base=base,
                digest=self._content.digest(),
            )
        )
        return True

    async def _finish(self, outcome: StepOutcome, *, truncated: str | None) -> None:
        last: list[tuple[Speaker, str]] = []
        if outcome.observation:
            last.append(("environment", outcome.observation))
        reward = self._reward
        if self._desk.reward is not None:
            reward = await self._score((*self._content.turns, *last))
        # Not before the score, which takes its time: a checkpoint holds no half of an ending.
        for turn in last:
            self._content.say(*turn)
        self._content.truncated = truncated is not None
        now_s = self._desk.now_s()
        self._desk.post(
            TrajectoryFinished(
                time_s=now_s,
                trajectory=self._trajectory,
                attempt=self._attempt,
                reward=reward,
                busy_s=now_s - self._began_s,
                base=self._content.digest(),
                masked=outcome.invalid,
                truncated=truncated,
            )
        )

    async def _score(self, turns: Sequence[tuple[Speaker, str]]) -> float:
        assert self._desk.reward is not None
        episode = Episode(
            prompt=self._prompt,
            turns=turns,
            environment_reward=self._reward,
            facts=self._facts,
        )
        limit_s = self._desk.rules.step_timeout_s
        try:
            async with asyncio.timeout(limit_s):
                score = await self._desk.reward(episode)
        except TimeoutError:
            raise RewardFault(
                f"the reward did not answer within environment.step_timeout_s = {limit_s} s"
            ) from None
        self._content.reward_parts = score.parts
        return score.value

    def _lose(self, ending: Ending, reason: str) -> None:
        now_s = self._desk.now_s()
        self._desk.post(
            TrajectoryLost(
                time_s=now_s,
                trajectory=self._trajectory,
                attempt=self._attempt,
                ending=ending,
                reason=reason,
                busy_s=now_s - self._began_s,
            )
        )


def _cut_spans(spans: Sequence[Span], num_tokens: int) -> tuple[Span, ...]:
    """The spans of the first ``num_tokens`` tokens."""
    kept: list[Span] = []
    for span in spans:
        length = min(span.length, num_tokens)
        if length:
            kept.append(Span(version=span.version, length=length))
        num_tokens -= length
    return tuple(kept)
