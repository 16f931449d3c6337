"""What is said between a model's turns, as tokens: for models without a chat template, its text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from colocate.ports import Prompt, Role

Encode = Callable[[str], list[int]]
"""Tokens of a text, without special tokens added."""
Decode = Callable[[Sequence[int]], str]
"""The text of tokens, special ones included."""


class Turns(Protocol):
    """How a conversation becomes tokens. What a model sampled is never among its results.

    Each method raises ``ValueError`` for what it cannot write.

    Attributes:
        stop_tokens: Each of them ends a turn.
    """

    @property
    def stop_tokens(self) -> frozenset[int]: ...

    def opening(self, prompt: Prompt, appended: str) -> list[int]:
        """All before the first turn; ``appended`` is what the environment adds to the prompt."""

    def observation(self, text: str, role: Role | None, last_token: int) -> list[int]:
        """All between a turn, whose last token is given, and the next one.

        ``role``: whose message it is; None where the environment did not say.
        """

    def action(self, token_ids: Sequence[int]) -> str:
        """A turn as its environment reads it."""


class PlainTurns:
    """Prompt, turns and observations as text, one after the other.

    Whoever writes them may name special tokens: without a template there is nobody else to.
    """

    def __init__(
        self, encode: Encode, decode: Decode, *, stop_tokens: frozenset[int] = frozenset()
    ) -> None:
        self._encode = encode
        self._decode = decode
        self.stop_tokens = stop_tokens

    def opening(self, prompt: Prompt, appended: str) -> list[int]:
        if prompt.history:
            raise ValueError(
                "a prompt with messages before its text (Prompt.history) needs a model with a chat "
                "template; this one has none, or model.chat_template=none"
            )
        return self._encode(prompt.text + appended)

    def observation(self, text: str, role: Role | None, last_token: int) -> list[int]:
        return self._encode(text)

    def action(self, token_ids: Sequence[int]) -> str:
        return self._decode(token_ids)


def as_text(prompt: Prompt) -> str:
    """A prompt with the messages before it, for people and reward functions."""
    before = [f"[{message['role']}] {message['content']}\n" for message in prompt.history]
    return "".join(before) + prompt.text
