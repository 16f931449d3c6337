"""The table of rules, and how a rule enters it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from colocate.problems import Problem

Check = Callable[..., Iterator[Problem]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """``check`` is called with the values of ``fields``, in their order."""

    name: str
    fields: tuple[str, ...]
    check: Check


RULES: list[Rule] = []
"""Every rule, in the order of reporting."""


def rule(*fields: str) -> Callable[[Check], Check]:
    """Adds a function to the table as the rule of these fields."""

    def add(check: Check) -> Check:
        RULES.append(Rule(name=check.__name__.strip("_"), fields=fields, check=check))
        return check

    return add
