"""Rules of the user's own code: what is named can be imported, and takes what it will be given."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from colocate.ports import Environment
from colocate.preflight.table import rule
from colocate.problems import Problem, nearest


class NotFoundError(Exception):
    """Names what an import path lacks, and the remedy."""

    def __init__(self, reason: str, remedy: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.remedy = remedy


@rule("data.source", "data.options")
def _prompt_source_can_be_made(path: str | None, options: Mapping[str, Any]) -> Iterator[Problem]:
    if path is not None:
        yield from _check(path, options, "data", "source", ("prompt",))


@rule("environment.factory", "environment.options")
def _environment_can_be_made(path: str, options: Mapping[str, Any]) -> Iterator[Problem]:
    methods = tuple(name for name in vars(Environment) if not name.startswith("_"))
    yield from _check(path, options, "environment", "factory", methods)


def _check(
    path: str, options: Mapping[str, Any], section: str, key: str, methods: tuple[str, ...]
) -> Iterator[Problem]:
    field = f"{section}.{key}"
    try:
        target = load(path)
    except NotFoundError as error:
        yield not_found(field, path, error)
        return
    lacking = [name for name in methods if not callable(getattr(target, name, None))]
    if inspect.isclass(target) and lacking:
        yield Problem(
            field=field,
            value=path,
            rule=f"must be a class with the methods {', '.join(methods)}; "
            f"it lacks {', '.join(lacking)}",
            remedy="see the protocols in colocate.ports",
        )
    reason = refusal(target, options)
    if reason is not None:
        yield Problem(
            field=f"{section}.options",
            value=dict(options),
            rule=f"must be arguments that {path} accepts: {reason}",
            remedy=f"its signature is {inspect.signature(target)}",
        )


def not_found(field: str, path: str, error: NotFoundError) -> Problem:
    """The problem of a field that names what cannot be found."""
    return Problem(
        field=field,
        value=path,
        rule=f"must name something that can be imported and called; {error.reason}",
        remedy=error.remedy,
    )


def load(path: str) -> Any:
    """What an import path names.

    Raises:
        NotFoundError: it cannot be imported, is not there, or cannot be called.
    """
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything while it is imported
        raise NotFoundError(
            f"importing {module_name} raised {type(error).__name__}: {error}",
            "install the package, or run from the folder that holds the module",
        ) from error
    if not hasattr(module, name):
        guess = nearest(name, vars(module))
        hint = f"did you mean {module_name}:{guess}?" if guess else "check the name"
        raise NotFoundError(f"{module_name} has no `{name}`", hint)
    target = getattr(module, name)
    if not callable(target):
        raise NotFoundError(
            f"{path} is of type {type(target).__name__}, which cannot be called",
            "name a class or a function",
        )
    return target


def refusal(target: Any, options: Mapping[str, Any]) -> str | None:
    """Why ``target(**options)`` would be refused; None where it would not, or cannot be known."""
    try:
        signature = inspect.signature(target)
    except (TypeError, ValueError):  # some callables written in C have none
        return None
    try:
        signature.bind(**options)
    except TypeError as error:
        return str(error)
    return None
