"""Says what Hydra refuses in the words of this project: field, rule, value, remedy."""

from __future__ import annotations

from typing import Any

from hydra.errors import (
    ConfigCompositionException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf.errors import OmegaConfBaseException

from colocate.problems import NO_VALUE, Problem, nearest
from colocate.schema import known_paths, unknown_key


def explain(override: str, error: Exception, *, names_group: bool) -> Problem:
    """The problem of the one override that Hydra refused with this error.

    Args:
        override: As it was given.
        error: What Hydra raised when the override joined others that it takes.
        names_group: Whether the override chooses a file of a group, and does not set a value.
    """
    left, has_value, text = override.partition("=")
    key = left.strip().lstrip("+~")
    value: Any = text if has_value else NO_VALUE
    lines = _lines(error)
    if isinstance(error, OverrideParseException):
        return Problem(
            field=override,
            rule=f"must be an override in Hydra's syntax: {lines[0]}",
            remedy="write KEY=VALUE, and put quotes around a value with special characters: "
            "'KEY=\"VALUE\"'",
        )
    if isinstance(error, MissingConfigException) and error.options is not None:
        guess = nearest(text, error.options)
        choices = f"the choices are: {', '.join(error.options)}"
        return Problem(
            field=key,
            value=value,
            rule="no such choice in this group",
            remedy=f"did you mean {left}={guess}? {choices}" if guess else choices,
        )
    known = known_paths()
    if not left.startswith(("+", "~")) and not names_group:
        holder = known.get(key.rpartition(".")[0])
        if holder is not None and holder.free_form:
            return Problem(
                field=key,
                value=value,
                rule="is new in a free-form mapping",
                remedy=f"add it with a plus sign: +{override}",
            )
        if key not in known and not key.startswith("hydra"):
            return unknown_key(key, value)
        group, _, name = key.partition(".")
        if name and key in known and isinstance(error, ConfigCompositionException):
            return Problem(
                field=key,
                value=value,
                rule=f"is no key of the choice that was made in the group `{group}`",
                remedy=f"choose one that has it, as {group}=NAME; docs/configuration.md lists them",
            )
    return Problem(
        field=key,
        value=value,
        rule=f"Hydra cannot apply it: {lines[0]}",
        remedy=" ".join(lines[1:]) or "see `colocate train --help`",
    )


def joint(error: Exception) -> Problem:
    """The problem of overrides that Hydra refuses only together, or of a file among its own."""
    lines = _lines(error)
    return Problem(
        field="configuration",
        rule=f"Hydra cannot compose it: {lines[0]}",
        remedy=" ".join(lines[1:]) or "check the overrides and your own configuration files",
    )


def unresolved(key: str, error: OmegaConfBaseException) -> Problem:
    """The problem of an interpolation that leads nowhere."""
    lines = _lines(error)
    return Problem(
        field=key,
        rule=f"must be a value that can be resolved: {lines[0]}",
        remedy="check the names in its ${...}",
    )


def _lines(error: Exception) -> list[str]:
    return [line.strip() for line in str(error).splitlines() if line.strip()]
