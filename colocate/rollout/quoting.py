"""Keeps the words of prompts and environments from becoming special tokens.

A tokenizer turns the text ``<|im_end|>`` into the token that ends a turn, whoever wrote it. A page
that an agent reads could so end the user's turn and begin one in the system's name. What the
template writes must become special tokens and what it quotes must not, and once the template has
written, the two cannot be told apart. So names of special tokens are replaced by marks before the
template sees them, and put back as plain text afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from colocate.rollout.turns import Encode

OPEN, CLOSE = "\ufdd0", "\ufdd1"
"""Unicode keeps these two for a program's own use: no text that is exchanged has them."""

_MARK = re.compile(f"{OPEN}([0-9]+){CLOSE}")


class EncodePlain(Protocol):
    """Tokens of a part of a text, without special ones, also where it names them."""

    def __call__(self, text: str, /, *, first: bool) -> list[int]: ...


class QuotingError(ValueError):
    """A template lost a mark, so that what it quotes cannot be found again."""


@dataclass(frozen=True, slots=True)
class SpecialToken:
    """How a tokenizer finds one in a text.

    Attributes:
        takes_left: It takes the white space before it as well.
        takes_right: Likewise, after it.
    """

    takes_left: bool = False
    takes_right: bool = False


class Quoting:
    """One tokenizer's special tokens, as text and as tokens.

    Args:
        encode: Finds special tokens in a text.
        encode_plain: Finds none; is told whether a part is the text's first.
        special: By name.
    """

    def __init__(
        self, encode: Encode, encode_plain: EncodePlain, special: Mapping[str, SpecialToken]
    ) -> None:
        self._encode = encode
        self._encode_plain = encode_plain
        self._special = special
        # The longest first: one name may begin another.
        self._names = [*sorted(special, key=len, reverse=True), OPEN]
        self._number = {name: number for number, name in enumerate(self._names)}
        self._any_name = re.compile("|".join(map(re.escape, self._names)))
        # Without OPEN, which is no token.
        self._any_token = re.compile("|".join(map(re.escape, self._names[:-1])) or r"(?!)")

    def quote(self, text: str) -> str:
        """The text with a mark for each name of a special token; most texts have none."""
        return self._any_name.sub(lambda found: self._mark(found[0]), text)

    def encode(self, written: str, quoted: str) -> list[int]:
        """Tokens of what a template wrote around quoted text.

        Without a mark this is the tokenizer's own work. With marks the text is cut at the special
        tokens that the template wrote, as the tokenizer would cut it, and the rest is encoded as
        plain text.

        Args:
            written: May hold marks.
            quoted: All that ``quote`` gave for it.

        Raises:
            QuotingError: not every mark of ``quoted`` is in ``written``.
        """
        expected = _MARK.findall(quoted)
        if not expected:
            return self._encode(written)
        if len(_MARK.findall(written)) < len(expected):
            raise QuotingError(
                "the chat template changes or drops text that names a special token, such as "
                f"{self._names[int(expected[0])]!r}; such text cannot be told from the token"
            )
        tokens: list[int] = []
        place = 0
        for found in self._any_token.finditer(written):
            token = self._special[found[0]]
            before = written[place : found.start()]
            before = before.rstrip() if token.takes_left else before
            tokens += self._plain(before, first=place == 0)
            tokens += self._encode(found[0])
            place = found.end()
            if token.takes_right:
                place += len(written[place:]) - len(written[place:].lstrip())
        return tokens + self._plain(written[place:], first=place == 0)

    def _plain(self, text: str, *, first: bool) -> list[int]:
        whole = _MARK.sub(lambda found: self._names[int(found[1])], text)
        return self._encode_plain(whole, first=first) if whole else []

    def _mark(self, name: str) -> str:
        return f"{OPEN}{self._number[name]}{CLOSE}"
