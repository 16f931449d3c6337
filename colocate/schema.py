"""The configuration's schema as a flat table, and validation that reports every fault at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from colocate.config import RunConfig, Section
from colocate.problems import Problem, nearest

MISSING = "???"
"""How the Hydra tree marks a value that only the user can give."""

REQUIRED = "is required and has no value"


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaField:
    """One field of the schema.

    ``section`` is the class of its value where that is a section. ``default`` is what it is where
    nothing is said, which a section may choose for the fields of those in it; None where required.
    """

    path: str
    info: FieldInfo
    section: type[Section] | None
    default: Any

    @property
    def required(self) -> bool:
        return self.info.is_required()

    @property
    def free_form(self) -> bool:
        """Holds keys of the user's own, as an environment's options."""
        annotation = self.info.annotation
        options = get_args(annotation) if get_origin(annotation) is UnionType else (annotation,)
        return any(get_origin(option) is dict for option in options)


def walk(
    section: type[Section] = RunConfig, prefix: str = "", whole: Section | None = None
) -> Iterator[SchemaField]:
    """Every field, sections before what they hold, in the order of the schema.

    ``whole``: the section as it is by default, where it has one.
    """
    for name, info in section.model_fields.items():
        path = f"{prefix}{name}"
        inner = section_of(info.annotation)
        default = None
        if whole is not None:
            default = getattr(whole, name)
        elif not info.is_required():
            default = info.get_default(call_default_factory=True)
        yield SchemaField(path=path, info=info, section=inner, default=default)
        if inner is not None:
            by_default = default if isinstance(default, Section) else None
            yield from walk(inner, f"{path}.", by_default)


def known_paths() -> dict[str, SchemaField]:
    return {field.path: field for field in walk()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Examination:
    """What a plain tree turned out to be.

    Attributes:
        config: The typed configuration; None where there are problems.
        problems: All faults of single fields.
        values: The value of each field that has no fault, by path, defaults filled in; of a
            section, its plain mapping.
    """

    config: RunConfig | None
    problems: tuple[Problem, ...]
    values: Mapping[str, Any]


def examine(tree: Mapping[str, Any]) -> Examination:
    """Validates a plain tree against the schema; never raises for what the tree holds."""
    problems = {path: _required(path) for path in _missing(tree, "")}
    config = None
    try:
        config = RunConfig.model_validate(_without_missing(tree))
    except ValidationError as error:
        for detail in error.errors(include_url=False):
            path = ".".join(str(part) for part in detail["loc"])
            problems.setdefault(path, _problem(path, detail))
    values = {
        path: value
        for path, value in _leaves(RunConfig, tree, "")
        if not any(_overlap(path, fault) for fault in problems)
    }
    return Examination(
        config=None if problems else config, problems=tuple(problems.values()), values=values
    )


def _overlap(path: str, fault: str) -> bool:
    return path == fault or path.startswith(f"{fault}.") or fault.startswith(f"{path}.")


def section_of(annotation: Any) -> type[Section] | None:
    """The section that a field of this type holds, optional ones included; None for a value."""
    if get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    options = (
        get_args(annotation) if get_origin(annotation) in (Union, UnionType) else (annotation,)
    )
    for option in options:
        if isinstance(option, type) and issubclass(option, Section):
            return option
    return None


def _without_missing(tree: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: _without_missing(value) if isinstance(value, Mapping) else value
        for key, value in tree.items()
        if value != MISSING
    }


def _missing(tree: Mapping[str, Any], prefix: str) -> Iterator[str]:
    for key, value in tree.items():
        if isinstance(value, Mapping):
            yield from _missing(value, f"{prefix}{key}.")
        elif value == MISSING:
            yield f"{prefix}{key}"


def _leaves(section: type[Section], tree: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    given = tree if isinstance(tree, Mapping) else {}
    for name, info in section.model_fields.items():
        path = f"{prefix}{name}"
        value = given.get(name, MISSING)
        if value == MISSING:
            if info.is_required():
                continue
            value = info.get_default(call_default_factory=True)
            if isinstance(value, Section):
                value = value.model_dump()
        yield path, value
        inner = section_of(info.annotation)
        if inner is not None and value is not None:
            yield from _leaves(inner, value, f"{path}.")


def _problem(path: str, detail: ErrorDetails) -> Problem:
    """Says a validation error in the words of this project."""
    fields = known_paths()
    kind = detail["type"]
    if kind == "missing":
        return _required(path)
    if kind == "extra_forbidden":
        return unknown_key(path, detail["input"])
    rule = detail["msg"].removeprefix("Input ").removeprefix("Value error, ")
    whole = path.rstrip("0123456789").rstrip(".")
    return Problem(
        field=path,
        value=detail["input"],
        rule=rule,
        remedy=_set_it(path, fields.get(path) or fields.get(whole)),
    )


def _required(path: str) -> Problem:
    remedy = _set_it(path, known_paths().get(path))
    return Problem(field=path, rule=REQUIRED, remedy=remedy)


def unknown_key(path: str, value: Any) -> Problem:
    """The problem of a key that the schema lacks, with the key that was probably meant."""
    fields = known_paths()
    parent, _, name = path.rpartition(".")
    siblings = {known.rpartition(".")[2]: known for known in fields if _parent(known) == parent}
    guess = nearest(name, siblings)
    if guess is not None:
        remedy = f"did you mean `{siblings[guess]}`?"
    elif siblings:
        remedy = f"`{parent}` has the keys: {', '.join(siblings)}" if parent else _roots()
    else:
        meant = nearest(path, fields)
        remedy = f"did you mean `{meant}`?" if meant is not None else _roots()
    return Problem(field=path, value=value, rule="no such key in the configuration", remedy=remedy)


def _roots() -> str:
    return f"the keys at the root are: {', '.join(RunConfig.model_fields)}"


def _parent(path: str) -> str:
    return path.rpartition(".")[0]


def _set_it(path: str, field: SchemaField | None) -> str:
    if field is None:
        return f"give `{path}` a value that satisfies the rule"
    remedy = f"give {field.path}=VALUE"
    if field.info.description:
        remedy += f" ({field.info.description.rstrip('.')})"
    default = field.info.get_default(call_default_factory=True)
    if default not in (PydanticUndefined, None) and field.section is None:
        remedy += f"; the default is {default!r}"
    return remedy
