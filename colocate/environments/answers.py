"""A model's last word: the answer it gives, and whether it is the one that is wanted."""

from __future__ import annotations

import re

_ANSWER = re.compile(r"^[ \t*]*answer[ \t*]*:[ \t*]*(.+?)[ \t*]*$", re.M | re.I)


def given_answer(turn: str) -> str | None:
    """What follows the last ``Answer:`` that begins a line; None where there is none.

    Example: ``"So it is 6 x 7.\\n**Answer:** 42"`` gives ``"42"``.
    """
    found = _ANSWER.findall(turn)
    return str(found[-1]) if found else None


def is_same(given: str, wanted: str) -> bool:
    """As numbers where both are, else as text, whatever its case, outer marks and last stop."""
    try:
        return float(given.replace(",", "")) == float(wanted.replace(",", ""))
    except ValueError:
        return _bare(given) == _bare(wanted)


def _bare(text: str) -> str:
    return " ".join(text.strip().strip("`'\"").rstrip(".").strip("`'\"").casefold().split())
