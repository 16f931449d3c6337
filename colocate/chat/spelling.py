"""An answer as text while it is being given."""

from __future__ import annotations

from collections.abc import Callable, Sequence

_INCOMPLETE = "\ufffd"
"""What a tokenizer writes for a character of which bytes are still to come."""


class Spelling:
    """Takes tokens as they come, and shows the text that they add.

    Args:
        action: The text of a turn's tokens.
        write: Shows a piece of text.
    """

    def __init__(
        self, action: Callable[[Sequence[int]], str], write: Callable[[str], None]
    ) -> None:
        self._action = action
        self._write = write
        self._token_ids: list[int] = []
        self._shown = ""

    def add(self, token_ids: Sequence[int]) -> None:
        """The next tokens."""
        self._token_ids += token_ids
        text = self._action(self._token_ids)
        if not text.endswith(_INCOMPLETE):
            self._show(text)

    def end(self, text: str) -> None:
        """Shows what is left of the whole text, and begins anew."""
        self._show(text)
        self._token_ids, self._shown = [], ""

    def _show(self, text: str) -> None:
        if len(text) > len(self._shown) and text.startswith(self._shown):
            self._write(text[len(self._shown) :])
            self._shown = text
