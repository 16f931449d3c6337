"""Where a verifier finds the answer that a trajectory gave, and the one it should have given."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from colocate.rollout.runner import Episode


class AnswerFinder:
    """Reads both sides of a comparison.

    Args:
        column: Of the data set: the right answer, or a list of those that are right.
        pattern: Regular expression (``.`` matches line ends too) of where the answer is in the
            agent's last turn: its first group, or all that it matches; the last match counts.
            None: the whole turn.
    """

    def __init__(self, column: str = "answer", pattern: str | None = None) -> None:
        self._column = column
        self._pattern = None if pattern is None else re.compile(pattern, re.DOTALL)

    def given(self, trajectory: Episode) -> str | None:
        """What was answered, without white space around it; None where nothing matches."""
        text = trajectory.last_turn
        if self._pattern is None:
            return text.strip()
        matches = list(self._pattern.finditer(text))
        if not matches:
            return None
        found = matches[-1]
        groups = [group for group in found.groups() if group is not None]
        return (groups[0] if groups else found[0]).strip()

    def right(self, columns: Mapping[str, Any]) -> list[Any]:
        """All answers that are right.

        Raises:
            LookupError: the prompt has no such column, or nothing in it.
        """
        value = columns.get(self._column)
        right = list(value) if isinstance(value, (list, tuple)) else [value]
        if not right or any(each is None for each in right):
            has = ", ".join(f"`{name}`" for name in columns) or "none"
            raise LookupError(
                f"the prompt has no right answer in the column `{self._column}` (its columns: "
                f"{has}); name another with the option `column`"
            )
        return right
