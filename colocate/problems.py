"""What is wrong with a configuration, in a form that a person can act on.

Every check that runs before a run starts adds to one list, so that one message tells all of it.
"""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

NO_VALUE = object()
"""Marks a problem of something that has no value, or was given none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One violated rule.

    Example: ``Problem(field="scheduler.swap_interval", value=4, rule="must be at most 2",
    remedy="set scheduler.swap_interval=2")``.

    Attributes:
        field: Dotted path in the configuration, or the command-line argument as it was given.
        rule: What must hold.
        remedy: What to do about it.
        value: What was given; left out where nothing was.
        jobs: The jobs of a multirun that have the problem; empty where all have it.
    """

    field: str
    rule: str
    remedy: str
    value: Any = NO_VALUE
    jobs: tuple[str, ...] = ()

    @property
    def has_value(self) -> bool:
        return self.value is not NO_VALUE

    @property
    def identity(self) -> tuple[str, str, str]:
        """Equal for the same problem met in several jobs, whose values may differ."""
        return (self.field, self.rule, repr(self.value) if self.has_value else "")


class ConfigurationError(Exception):
    """A configuration that must not start. ``str()`` is the whole message."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__(problems)
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return render(self.problems)


def render(problems: Sequence[Problem]) -> str:
    """All problems as one numbered message."""
    count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    lines = [f"colocate: wrong configuration, {count}; nothing was started or written."]
    for number, problem in enumerate(problems, start=1):
        given = f" = {_shown(problem.value)}" if problem.has_value else ""
        lines += ["", f"{number:3}. {problem.field}{given}"]
        if problem.jobs:
            lines += _paragraph("in", ", ".join(problem.jobs))
        lines += _paragraph("rule", problem.rule)
        lines += _paragraph("remedy", problem.remedy)
    return "\n".join(lines)


def merge(problems: Sequence[Problem], *, num_jobs: int) -> list[Problem]:
    """Joins the same problem of several jobs into one that names them, or none if all have it."""
    joined: dict[tuple[str, str, str], Problem] = {}
    for problem in problems:
        first = joined.setdefault(problem.identity, problem)
        if first is not problem:
            jobs = first.jobs + tuple(job for job in problem.jobs if job not in first.jobs)
            joined[problem.identity] = replace(first, jobs=jobs)
    return [
        replace(problem, jobs=()) if len(problem.jobs) == num_jobs else problem
        for problem in joined.values()
    ]


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that a misspelt one most likely meant, if any is near."""
    matches = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return matches[0] if matches else None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _paragraph(label: str, text: str) -> list[str]:
    return textwrap.wrap(
        text,
        width=100,
        initial_indent=f"     {label:<7}",
        subsequent_indent=" " * 12,
        break_long_words=False,
        break_on_hyphens=False,
    )
