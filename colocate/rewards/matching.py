"""Verifiers of text: exact match, numbers, and a format that is regular."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from typing import Any

from colocate.rewards.answers import AnswerFinder
from colocate.rollout.runner import Episode

_NUMBER = re.compile(
    r"[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+|\.)?(?:[eE][-+]?\d+)?(?:\s?/\s?\d+)?%?"
)


class ExactMatch:
    """1 where the answer is one of the right ones, letter by letter; else 0.

    White space around both is left out.

    Args:
        column, pattern: As of ``AnswerFinder``.
        ignore_case: Compare case-folded.
        ignore_punctuation: Leave out what is neither letter, digit nor white space, and count
            white space of any length as one space.
    """

    def __init__(
        self,
        column: str = "answer",
        pattern: str | None = None,
        ignore_case: bool = False,
        ignore_punctuation: bool = False,
    ) -> None:
        self._answers = AnswerFinder(column, pattern)
        self._ignore_case = ignore_case
        self._ignore_punctuation = ignore_punctuation

    def __call__(self, trajectory: Episode, **columns: Any) -> float:
        right = {self._plain(str(each)) for each in self._answers.right(columns)}
        given = self._answers.given(trajectory)
        return float(given is not None and self._plain(given) in right)

    def _plain(self, text: str) -> str:
        text = text.strip()
        if self._ignore_case:
            text = text.casefold()
        if self._ignore_punctuation:
            text = " ".join(re.sub(r"[^\w\s]|_", "", text).split())
        return text


class NumericMatch:
    """1 where the last number of the answer is within a tolerance of a right one; else 0.

    Numbers are exact decimals: ``1,234.50``, ``-3``, ``.5``, ``2e-3``, ``3/4``, ``45%`` (0.45).

    Args:
        column, pattern: As of ``AnswerFinder``; the number is looked for in what matches.
        absolute: Largest difference that counts as equal.
        relative: Likewise, as a share of the right number's size; the larger of both holds.
    """

    def __init__(
        self,
        column: str = "answer",
        pattern: str | None = None,
        absolute: float = 0.0,
        relative: float = 1e-6,
    ) -> None:
        if absolute < 0 or relative < 0:
            raise ValueError("tolerances must not be negative")
        self._answers = AnswerFinder(column, pattern)
        self._absolute = Fraction(absolute)
        self._relative = Fraction(relative)

    def __call__(self, trajectory: Episode, **columns: Any) -> float:
        right = [self._right(each) for each in self._answers.right(columns)]
        text = self._answers.given(trajectory)
        given = None if text is None else last_number(text)
        return float(given is not None and any(self._equal(given, each) for each in right))

    def _right(self, value: Any) -> Fraction:
        number = last_number(str(value))
        if number is None:
            raise ValueError(f"the right answer {value!r} holds no number")
        return number

    def _equal(self, given: Fraction, right: Fraction) -> bool:
        return abs(given - right) <= max(self._absolute, self._relative * abs(right))


class FormatMatch:
    """1 where the agent's last turn, or every turn, matches a regular expression; else 0.

    Args:
        pattern: ``.`` matches line ends too; the whole turn must match, white space around it
            aside.
        every_turn: All turns of the agent must match, and not the last alone.
    """

    def __init__(self, pattern: str, every_turn: bool = False) -> None:
        self._pattern = re.compile(pattern, re.DOTALL)
        self._every_turn = every_turn

    def __call__(self, trajectory: Episode) -> float:
        turns = [text for speaker, text in trajectory.turns if speaker == "agent"]
        checked = turns if self._every_turn else turns[-1:]
        return float(bool(checked) and all(self._pattern.fullmatch(t.strip()) for t in checked))


async def environment(trajectory: Episode) -> float:
    """The sum of what the environment's steps gave, as one part of several."""
    return trajectory.environment_reward


def last_number(text: str) -> Fraction | None:
    """The last number in a text, exactly; None where there is none, or none that is finite."""
    for match in reversed(list(_NUMBER.finditer(text))):
        if any(character.isdigit() for character in match[0]):
            return _number(match[0])
    return None


def _number(text: str) -> Fraction | None:
    percent = text.endswith("%")
    above, _, below = text.rstrip("%").replace(",", "").partition("/")
    try:
        decimal = Decimal(above.strip())
        if abs(decimal.adjusted()) > 400:  # A fraction would be written out digit by digit.
            return None
        number = Fraction(decimal) / Fraction(int(below) if below else 1)
    except (InvalidOperation, ZeroDivisionError, ValueError):
        return None
    return number / 100 if percent else number
