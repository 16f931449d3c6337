"""A reward function as a user wrote it, behind one way to call it.

Two signatures are taken. ``fn(trajectory, **columns) -> float`` is colocate's own. A function with
a parameter named ``completions`` is called in TRL's way, ``fn(prompts, completions, **columns) ->
list[float | None]``, with lists of one. Of the data set's columns a function gets those that it
has parameters for, or all where it takes ``**kwargs``.
"""

from __future__ import annotations

import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from colocate.rewards.trl import trl_arguments
from colocate.rollout.runner import Episode

TRL_MARK = "completions"


class UnfitRewardError(ValueError):
    """What a function returned is no reward, or it cannot be called with what there is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a function, or the instances of a class, are called with.

    Attributes:
        is_async: It is a coroutine function, and runs on the event loop.
        is_trl: It is called in TRL's way.
        names: Parameters that can be given by name; None where any can.
        required: Those of them without a default.
    """

    is_async: bool
    is_trl: bool
    names: frozenset[str] | None
    required: frozenset[str]

    def columns(
        self, given: Mapping[str, Any], options: Mapping[str, Any], taken: frozenset[str]
    ) -> dict[str, Any]:
        """Those columns that it takes. An option goes before a column of its name.

        Raises:
            UnfitRewardError: one without which it cannot be called is missing.
        """
        if missing := sorted(self.required - given.keys() - options.keys() - taken):
            has = ", ".join(f"`{name}`" for name in given) or "none"
            raise UnfitRewardError(
                f"it needs the column `{missing[0]}`, which the prompt does not have (it has {has})"
            )
        wanted = given.keys() if self.names is None else given.keys() & self.names
        return {name: given[name] for name in given if name in wanted - options.keys() - taken}


def load(path: str) -> Callable[..., Any]:
    """What ``package.module:name`` names."""
    module, _, name = path.partition(":")
    target: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return target


def shape_of(target: Callable[..., Any]) -> Shape:
    """Reads the signature of a function, or of a class's ``__call__``."""
    call = target.__call__ if inspect.isclass(target) else target
    skipped = 1 if inspect.isclass(target) else 0  # self
    is_async = inspect.iscoroutinefunction(call) or inspect.iscoroutinefunction(
        getattr(call, "__call__", None)  # noqa: B004
    )
    try:
        parameters = list(inspect.signature(call).parameters.values())[skipped:]
    except (TypeError, ValueError):  # some callables written in C have none
        return Shape(is_async=is_async, is_trl=False, names=frozenset(), required=frozenset())
    is_trl = any(parameter.name == TRL_MARK for parameter in parameters)
    if not is_trl:
        parameters = parameters[1:]  # the trajectory, by position
    by_name = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    return Shape(
        is_async=is_async,
        is_trl=is_trl,
        names=None if takes_any else frozenset(p.name for p in by_name),
        required=frozenset(p.name for p in by_name if p.default is p.empty),
    )


class Prepared:
    """A function with its options; of a class, an instance that was made with them."""

    def __init__(self, path: str, options: Mapping[str, Any]) -> None:
        target = load(path)
        of_class = inspect.isclass(target)
        self.shape = shape_of(target)
        self._call: Callable[..., Any] = target(**options) if of_class else target
        self._options = {} if of_class else options

    def __call__(self, episode: Episode) -> Any:
        """What the function returns: a value, or an awaitable of one.

        Raises:
            UnfitRewardError: a column that it needs is missing.
        """
        columns = episode.prompt.columns
        if self.shape.is_trl:
            own = trl_arguments(episode)
            if self.shape.names is not None:
                own = {name: value for name, value in own.items() if name in self.shape.names}
            taken = self.shape.columns(columns, self._options, frozenset(own))
            lists = {name: [value] for name, value in taken.items()}
            return self._call(**own, **lists, **self._options)
        taken = self.shape.columns(columns, self._options, frozenset())
        return self._call(episode, **taken, **self._options)

    def value(self, returned: Any) -> float | None:
        """The reward in what was returned; None where a TRL function has none for this sample.

        Raises:
            UnfitRewardError: it is no finite number, or not the list of one that TRL's way asks
                for.
        """
        if not self.shape.is_trl:
            return as_reward(returned)
        if not hasattr(returned, "__len__") or isinstance(returned, (str, bytes, Mapping)):
            raise UnfitRewardError(f"returned {_shown(returned)}, not a list of rewards")
        if len(returned) != 1:
            raise UnfitRewardError(f"returned {len(returned)} rewards for 1 completion")
        return None if returned[0] is None else as_reward(returned[0])

    async def close(self) -> None:
        """Closes an instance that can be closed."""
        close = getattr(self._call, "close", None)
        if inspect.iscoroutinefunction(close):
            await close()


def as_reward(value: Any) -> float:
    """A finite number of any kind (bool, Fraction, NumPy's and torch's scalars) as a float.

    Raises:
        UnfitRewardError: it is something else. A text is, whatever it says.
    """
    if not hasattr(value, "__float__"):
        raise UnfitRewardError(f"returned {_shown(value)}, not a number")
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise UnfitRewardError(f"returned {_shown(value)}, not a number: {error}") from error
    if not math.isfinite(number):
        raise UnfitRewardError(f"returned {number}, not a finite number")
    return number


def _shown(value: Any) -> str:
    text = repr(value)
    text = text if len(text) <= 60 else f"{text[:57]}..."
    return f"{text} of type {type(value).__name__}"
