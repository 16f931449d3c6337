"""A transformers tokenizer behind the rollout's small interfaces."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from colocate.ports import Message
from colocate.rollout.chat import Render
from colocate.rollout.quoting import SpecialToken

GUARD = "\ufdd0"
"""Of no text and in no merge: what follows it is encoded as in the middle of a text."""


class HuggingFaceTokenizer:
    """Of a model's folder, or of its name on the hub."""

    def __init__(self, model: str) -> None:
        from transformers import AutoTokenizer

        self.inner = AutoTokenizer.from_pretrained(model)

    def encode(self, text: str) -> list[int]:
        # What is too long for the model is the rollout's business, not a warning's.
        tokens: list[int] = self.inner.encode(text, add_special_tokens=False, verbose=False)
        return tokens

    def encode_plain(self, text: str, *, first: bool) -> list[int]:
        """Without special tokens, also where the text names them.

        Args:
            text: A part of a text, or all of it.
            first: Whether the text begins with it. Some tokenizers put a space there, and nowhere
                else.

        Raises:
            ValueError: the tokenizer has no way to encode this part alone.
        """
        if first or not self._begins_with_space:
            return self._encode_plain(text)
        guarded, guard = self._encode_plain(GUARD + text), self._encode_plain(GUARD)
        if guarded[: len(guard)] != guard:
            raise ValueError(f"the tokenizer does not encode {text[:40]!r} alone")
        return guarded[len(guard) :]

    def _encode_plain(self, text: str) -> list[int]:
        tokens: list[int] = self.inner.encode(
            text, add_special_tokens=False, split_special_tokens=True, verbose=False
        )
        return tokens

    @functools.cached_property
    def _begins_with_space(self) -> bool:
        end = self.inner.eos_token
        return end is not None and self.encode(f"{end}a")[1:] != self._encode_plain("a")

    def decode(self, token_ids: Sequence[int]) -> str:
        text: str = self.inner.decode(token_ids, skip_special_tokens=False)
        return text

    @property
    def has_template(self) -> bool:
        return bool(self.inner.chat_template)

    def added_tokens(self) -> Collection[int]:
        """Special tokens and others that are found before a text is cut."""
        return {*self.inner.get_added_vocab().values(), *self.inner.all_special_ids}

    def special_tokens(self) -> Mapping[str, SpecialToken]:
        """Those that mean something to the model, such as the end of a turn, by name."""
        return {
            token.content: SpecialToken(takes_left=token.lstrip, takes_right=token.rstrip)
            for token in self.inner.added_tokens_decoder.values()
            if token.special
        }

    def end_tokens(self) -> tuple[int, ...]:
        """All tokens that end a text; models with several list them in generation settings."""
        from transformers import GenerationConfig

        try:
            listed = GenerationConfig.from_pretrained(self.inner.name_or_path).eos_token_id
        except OSError:
            listed = None
        ends = [*(listed if isinstance(listed, list) else [listed]), self.inner.eos_token_id]
        return tuple(dict.fromkeys(token for token in ends if token is not None))

    def renderer(self, template: str | None, variables: Mapping[str, Any]) -> Render:
        """A chat template at work: the tokenizer's own, or the text of another."""

        def render(messages: Sequence[Message]) -> str:
            text: str = self.inner.apply_chat_template(
                list(messages),
                chat_template=template,
                add_generation_prompt=True,
                tokenize=False,
                **variables,
            )
            return text

        return render
