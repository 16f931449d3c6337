"""One trajectory, one task: generate, environment step, generate, and so on to its end.

          reset            generate             step / reward
    TurnReady --> [gate] --> RequestEnded --> TurnReady ... --> TrajectoryFinished
                    ^            |
                    +-- abort ---+   a park cut the turn: wait at the gate, go on from its tokens

Environment steps and rewards never wait for the gate; every one has a deadline.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, get_args

from colocate.core.events import (
    Event,
    RequestEnded,
    TrajectoryFinished,
    TrajectoryLost,
    TurnReady,
)
from colocate.core.types import Ending, FinishReason, GroupId, Span, TrajectoryId
from colocate.ports import (
    Environment,
    EnvironmentFactory,
    Generation,
    GenerationRequest,
    Inference,
    Prompt,
    Role,
    StepOutcome,
)
from colocate.rollout.content import Content, Speaker
from colocate.rollout.gate import Gate
from colocate.rollout.seam import cut_at_stop
from colocate.rollout.turns import PlainTurns, Turns

logger = logging.getLogger(__name__)

T = TypeVar("T")

RewardFunction = Callable[["Episode"], float | Awaitable[float]]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutRules:
    """Lengths in tokens, times in seconds.

    ``turns``: how conversations become tokens; None: as plain text.
    """

    seed: int
    max_new_tokens: int
    max_turns: int
    max_model_len: int
    temperature: float
    stop: tuple[str, ...]
    stop_token_ids: tuple[int, ...]
    step_timeout_s: float
    turns: Turns | None = None


_USER_FAULTS = (Exception, SystemExit, asyncio.CancelledError)
"""What somebody else's code may raise at worst: ``sys.exit()`` would end the event loop, and a
cancellation of its own making would end the trajectory's task without a word."""


class EnvironmentFault(Exception):
    """A passing fault of an environment: the trajectory is filtered, its slot refilled."""


class RewardFault(Exception):
    """A reward function broke: the trajectory has failed."""


@dataclass(slots=True, kw_only=True)
class Desk:
    """What all runners of a run share."""

    inference: Inference
    gate: Gate
    tokenizer: Tokenizer
    make_environment: EnvironmentFactory
    reward: RewardFunction | None
    rules: RolloutRules
    now_s: Callable[[], float]
    post: Callable[[Event], None]


def derive_seed(run: int, group: int, trajectory: int, attempt: int, *purpose: object) -> int:
    """Of run, prompt, trajectory, attempt and purpose: no two draws share one.

    The prompt is among them since a resumed run numbers its trajectories from 0 again.
    """
    name = repr((run, group, trajectory, attempt, *purpose))
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=4).digest(), "little")


class Runner:
    """Runs one attempt at one trajectory. Cancelling its task ends it quietly.

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
        tokenizer = desk.tokenizer
        self._turns = desk.rules.turns or PlainTurns(tokenizer.encode, tokenizer.decode)
        self._began_s = desk.now_s()
        self._reward = 0.0
        self._facts: Mapping[str, Any] = {}
        self.is_over = False

    async def run(self) -> None:
        """Posts events until the trajectory is finished or lost."""
        environment: Environment | None = None
        try:
            environment = self._make_environment()
            await self._play(environment)
        except EnvironmentFault as fault:
            self._lose(Ending.FILTERED, str(fault))
        except RewardFault as fault:
            self._lose(Ending.FAILED, str(fault))
        finally:
            self.is_over = True
            if environment is not None:
                await self._close(environment)

    async def _play(self, environment: Environment) -> None:
        rules = self._desk.rules
        self._start_clock()
        opening = await self._within_deadline(
            environment.reset(self._prompt, self._seed("environment")), "reset"
        )
        _check_text(opening, "reset")
        _check_text(self._prompt.text, "the prompt source")
        for message in self._prompt.history:
            _check_text(message["content"], "the prompt source")
        tokens = self._tokens(lambda: self._turns.opening(self._prompt, opening))
        if not self._observe("prompt", _as_text(self._prompt) + opening, tokens):
            raise EnvironmentFault(
                "a prompt leaves no room for a turn within inference.max_model_len = "
                f"{rules.max_model_len} tokens"
            )
        for turn in range(1, rules.max_turns + 1):
            action, cut_by = await self._take_turn()
            self._content.turns.append(("agent", action))
            self._start_clock()
            outcome = await self._within_deadline(environment.step(action), "step")
            self._check_outcome(outcome)
            self._reward += outcome.reward
            self._facts = {**self._facts, **outcome.facts}
            over = outcome.done or outcome.invalid
            if not over and turn == rules.max_turns:
                over, cut_by = True, "rollout.max_turns"
            # An observation that leaves no room for a turn ends the trajectory without it.
            elif not over and not self._answer(outcome):
                over, cut_by = True, "inference.max_model_len"
            if over:
                if outcome.observation:
                    self._content.turns.append(("environment", outcome.observation))
                await self._finish(
                    masked=outcome.invalid, truncated=None if outcome.invalid else cut_by
                )
                return

    # Turns

    def _room_for_turn(self) -> int:
        rules = self._desk.rules
        return min(rules.max_new_tokens, rules.max_model_len - len(self._content))

    async def _take_turn(self) -> tuple[str, str | None]:
        """Generates one turn, over as many parks as it takes.

        Returns its text, and the configuration's name of what cut it short; None where it stopped.
        """
        desk = self._desk
        begins_at = len(self._content)
        room = self._room_for_turn()
        while True:
            request = await desk.gate.wait(self._trajectory)
            num_left = room - (len(self._content) - begins_at)
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
                text = self._turns.action(self._content.token_ids[begins_at:].tolist())
                return text, self._what_cut(finish_reason, room)

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

    async def _within_deadline(self, work: Awaitable[T], what: str) -> T:
        limit_s = self._desk.rules.step_timeout_s
        try:
            async with asyncio.timeout(limit_s) as deadline:
                return await work
        except _USER_FAULTS as error:
            if _ends_the_task(error):
                raise
            if deadline.expired():
                raise EnvironmentFault(
                    f"{what} did not answer within environment.step_timeout_s = {limit_s} s"
                ) from None
            logger.warning("trajectory %s: %s broke", self._trajectory, what, exc_info=error)
            raise EnvironmentFault(f"{what} raised {type(error).__name__}: {error}") from error

    def _check_outcome(self, outcome: StepOutcome) -> None:
        if not isinstance(outcome, StepOutcome):
            raise EnvironmentFault(f"step returned {type(outcome).__name__}, not a StepOutcome")
        _check_text(outcome.observation, "step")
        if outcome.role not in (None, *get_args(Role)):
            raise EnvironmentFault(f"step returned the role {outcome.role!r}, not user or tool")
        if not isinstance(outcome.reward, (int, float)) or not math.isfinite(outcome.reward):
            raise EnvironmentFault(
                f"step returned the reward {outcome.reward!r}, not a finite int or float"
            )

    def _make_environment(self) -> Environment:
        try:
            return self._desk.make_environment()
        except (Exception, SystemExit) as error:
            raise EnvironmentFault(f"making it raised {type(error).__name__}: {error}") from error

    def _tokens(self, write: Callable[[], list[int]]) -> list[int]:
        """A chat template is somebody else's code too."""
        try:
            return write()
        except Exception as error:
            raise EnvironmentFault(f"a message cannot be written as tokens: {error}") from error

    def _answer(self, outcome: StepOutcome) -> bool:
        text, last_token = outcome.observation, self._content.token_ids[-1]
        tokens = self._tokens(lambda: self._turns.observation(text, outcome.role, last_token))
        return self._observe("environment", text, tokens)

    def _observe(self, speaker: Speaker, text: str, observed: Sequence[int]) -> bool:
        """Appends text and reports that the trajectory wants to be generated on.

        Returns False, and does nothing, where no turn would have room after it.
        """
        if len(self._content) + len(observed) >= self._desk.rules.max_model_len:
            return False
        base = self._content.digest()
        self._content.append_observed(observed)
        self._content.turns.append((speaker, text))
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

    async def _finish(self, *, masked: bool, truncated: str | None) -> None:
        self._content.truncated = truncated is not None
        reward = self._reward if self._desk.reward is None else await self._score()
        now_s = self._desk.now_s()
        self._desk.post(
            TrajectoryFinished(
                time_s=now_s,
                trajectory=self._trajectory,
                attempt=self._attempt,
                reward=reward,
                busy_s=now_s - self._began_s,
                base=self._content.digest(),
                masked=masked,
                truncated=truncated,
            )
        )

    async def _score(self) -> float:
        assert self._desk.reward is not None
        episode = Episode(
            prompt=self._prompt,
            turns=tuple(self._content.turns),
            environment_reward=self._reward,
            facts=self._facts,
        )
        limit_s = self._desk.rules.step_timeout_s
        try:
            async with asyncio.timeout(limit_s) as deadline:
                reward = self._desk.reward(episode)
                value = float(await reward if inspect.isawaitable(reward) else reward)
        except _USER_FAULTS as error:
            if _ends_the_task(error):
                raise
            if deadline.expired():
                raise RewardFault(
                    f"the reward did not answer within environment.step_timeout_s = {limit_s} s"
                ) from None
            logger.warning("trajectory %s: its reward broke", self._trajectory, exc_info=error)
            raise RewardFault(f"the reward raised {type(error).__name__}: {error}") from error
        if not math.isfinite(value):
            raise RewardFault(f"the reward is {value}")
        return value

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

    async def _close(self, environment: Environment) -> None:
        try:
            async with asyncio.timeout(self._desk.rules.step_timeout_s):
                await environment.close()
        except TimeoutError:
            logger.warning("trajectory %s: its environment did not close in time", self._trajectory)
        except Exception:
            logger.warning(
                "trajectory %s: closing its environment broke", self._trajectory, exc_info=True
            )


def _as_text(prompt: Prompt) -> str:
    """For people and reward functions."""
    before = [f"[{message['role']}] {message['content']}\n" for message in prompt.history]
    return "".join(before) + prompt.text


def _check_text(text: object, source: str) -> None:
    if not isinstance(text, str):
        raise EnvironmentFault(f"{source} returned {type(text).__name__}, not a text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        # Neither a tokenizer nor a file takes lone surrogates.
        raise EnvironmentFault(
            f"{source} returned a text that is no Unicode: {error}; decode with errors='replace'"
        ) from error


def _ends_the_task(error: BaseException) -> bool:
    """Whether it is a cancellation that was asked for, and not one that user code came up with."""
    task = asyncio.current_task()
    assert task is not None
    return isinstance(error, asyncio.CancelledError) and task.cancelling() > 0


def _cut_spans(spans: Sequence[Span], num_tokens: int) -> tuple[Span, ...]:
    """The spans of the first ``num_tokens`` tokens."""
    kept: list[Span] = []
    for span in spans:
        length = min(span.length, num_tokens)
        if length:
            kept.append(Span(version=span.version, length=length))
        num_tokens -= length
    return tuple(kept)
