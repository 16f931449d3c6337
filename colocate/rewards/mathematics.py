"""Answers that are mathematics, compared as such, with Hugging Face's math-verify.

Its sympy may think for ever about some expressions: it runs in a worker process, and the deadline
of rewards ends it. (Its own time limits need signals of the main thread, which a worker has.)
"""

from __future__ import annotations

from typing import Any

from colocate.rewards.answers import AnswerFinder
from colocate.rollout.runner import Episode


class MathMatch:
    """1 where the answer is mathematically equal to a right one; else 0.

    LaTeX (``\\boxed{}`` first) and plain expressions are read. Needs the extra `colocate[math]`.

    Args:
        column, pattern: As of ``AnswerFinder``.
        float_rounding: Decimals that numbers are compared to.
        strict: Variables must have the same names, and sets are no tuples.
        timeout_s: For reading one answer, and for one comparison; what takes longer is not equal.

    Raises:
        ImportError: math-verify is not installed; the message says how to install it.
    """

    def __init__(
        self,
        column: str = "answer",
        pattern: str | None = None,
        float_rounding: int = 6,
        strict: bool = True,
        timeout_s: int = 5,
    ) -> None:
        try:
            import math_verify
        except ImportError as error:
            raise ImportError(
                "MathMatch needs math-verify: pip install 'colocate[math]'"
            ) from error
        self._library = math_verify
        self._answers = AnswerFinder(column, pattern)
        self._float_rounding = float_rounding
        self._strict = strict
        self._timeout_s = timeout_s

    def __call__(self, trajectory: Episode, **columns: Any) -> float:
        given = self._answers.given(trajectory)
        right = [self._read_right(str(each)) for each in self._answers.right(columns)]
        if given is None:
            return 0.0
        read = self._read(given)
        return float(
            any(
                self._library.verify(
                    each,
                    read,
                    float_rounding=self._float_rounding,
                    strict=self._strict,
                    timeout_seconds=self._timeout_s,
                )
                for each in right
            )
        )

    def _read(self, text: str) -> list[Any]:
        read: list[Any] = self._library.parse(text, parsing_timeout=self._timeout_s)
        return read

    def _read_right(self, text: str) -> list[Any]:
        # Data sets often hold bare LaTeX. LaTeX is only looked for between dollars; without them
        # the last number of an expression would be taken for the answer.
        delimited = any(mark in text for mark in ("$", "\\(", "\\[", "\\boxed"))
        read = self._read(text if delimited else f"${text}$") or self._read(text)
        if not read:
            raise ValueError(f"the right answer {text!r} is no mathematics that can be read")
        return read
