"""Talking to a model in the form in which it was trained: its chat template, or plain text."""

from __future__ import annotations

from dataclasses import dataclass, replace

from colocate.chat.model import ChatError, Engine
from colocate.core.types import FinishReason
from colocate.ports import GenerationRequest, Prompt
from colocate.rollout.runner import RolloutRules, Tokenizer, derive_seed
from colocate.rollout.turns import PlainTurns


@dataclass(frozen=True, slots=True)
class Answer:
    """What the model said. ``cut_by``: what cut it short, as the configuration names it."""

    text: str
    cut_by: str | None


class Conversation:
    """Tokens in and tokens out, as in a run: what the model said is never tokenised again."""

    def __init__(self, engine: Engine, tokenizer: Tokenizer, rules: RolloutRules) -> None:
        self._engine = engine
        self._rules = rules
        self._turns = rules.turns
        self._token_ids: list[int] = []

    @property
    def is_plain(self) -> bool:
        return isinstance(self._turns, PlainTurns)

    def begin_anew(self) -> None:
        """Forgets all that was said."""
        self._token_ids = []

    async def say(self, text: str) -> Answer:
        """Says something, and returns the answer. What is refused changes nothing.

        Raises:
            ChatError: there is no room left, or the template cannot write the text.
        """
        rules = self._rules
        context = [*self._token_ids, *self._written(text)]
        if not context:
            raise ChatError("an empty prompt: the model needs a token to go on from")
        room = min(rules.max_new_tokens, rules.max_model_len - len(context))
        if room < 1:
            raise ChatError(
                f"{len(context)} tokens leave no room for an answer within "
                f"inference.max_model_len = {rules.max_model_len} of the run"
            )
        generation = await self._engine.generate(
            GenerationRequest(
                request_id=f"chat-{len(context)}",
                prompt_token_ids=context,
                max_new_tokens=room,
                seed=derive_seed(rules.seed, 0, 0, 0, "chat", len(context)),
                temperature=rules.temperature,
                stop_token_ids=rules.stop_token_ids,
                stop=rules.stop,
            )
        )
        sampled = list(generation.token_ids)
        self._token_ids = [*context, *sampled]
        cut_by = None
        if generation.finish_reason is FinishReason.LENGTH:
            fits = room == rules.max_new_tokens
            cut_by = "rollout.max_new_tokens" if fits else "inference.max_model_len"
        return Answer(self._turns.action(sampled), cut_by)

    def _written(self, text: str) -> list[int]:
        try:
            if not self._token_ids:
                return self._turns.opening(Prompt(text=text), "")
            return self._turns.observation(text, "user", self._token_ids[-1])
        except ValueError as error:
            raise ChatError(str(error)) from error


def adjusted(
    rules: RolloutRules, *, seed: int, temperature: float | None, max_new_tokens: int | None
) -> RolloutRules:
    """The run's rules with what was asked for instead."""
    return replace(
        rules,
        seed=seed,
        temperature=rules.temperature if temperature is None else temperature,
        max_new_tokens=max_new_tokens or rules.max_new_tokens,
    )
