"""From the configuration to a maker of environments."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from colocate.adapters.environments.latency import DelayedEnvironment, make_latency
from colocate.adapters.environments.limit import LimitedEnvironment
from colocate.adapters.environments.threads import ThreadedEnvironment, Threads
from colocate.config import EnvironmentConfig
from colocate.ports import Environment, EnvironmentFactory

_METHODS = {"reset": ("prompt", "seed"), "step": ("action",), "close": ()}
_FACTORY = "environment.factory"
_MOST_THREADS = 32
"""Where ``environment.max_concurrent`` says nothing: an episode that blocks holds one."""


def make_environment_factory(config: EnvironmentConfig) -> EnvironmentFactory:
    """Imports `environment.factory` and checks it before anything else of the run starts.

    A class is checked without making one; any other callable by the first environment it makes.

    Raises:
        ValueError: it cannot be imported or called with `environment.options`, or what it makes
            is no asynchronous environment. Names the field, the value and the remedy.
    """
    maker = _import(config.factory)
    _check_options(maker, config)
    if inspect.isclass(maker):
        _check_environment(maker, config)
    latency = make_latency(config.latency)
    make_bare, most = _maker(maker, config)
    room = None if most is None else asyncio.Semaphore(most)

    def make() -> Environment:
        environment = make_bare()
        if room is not None:
            environment = LimitedEnvironment(environment, room)
        return environment if latency is None else DelayedEnvironment(environment, latency)

    return make


def _maker(
    maker: Callable[..., Any], config: EnvironmentConfig
) -> tuple[EnvironmentFactory, int | None]:
    """Makes environments that run where the configuration says; and how many may work at once."""

    def make_checked() -> Any:
        environment = maker(**config.options)
        if not inspect.isclass(maker):
            _check_environment(environment, config)
        return environment

    if config.runs_in == "loop":
        return make_checked, config.max_concurrent
    threads = Threads()
    is_replayable = getattr(maker, "is_replayable", False) is True

    def make_threaded() -> Environment:
        return ThreadedEnvironment(make_checked, threads, is_replayable=is_replayable)

    return make_threaded, config.max_concurrent or _MOST_THREADS


def _import(path: str) -> Callable[..., Any]:
    module_name, _, name = path.partition(":")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(
            f"{_FACTORY} ({path!r}): module {module_name!r} cannot be imported: {error}; install "
            "it, or put its folder on PYTHONPATH"
        ) from error
    maker = getattr(module, name, None)
    if not callable(maker):
        what = "has no" if maker is None else "has no callable"
        raise ValueError(f"{_FACTORY} ({path!r}): module {module_name!r} {what} {name!r}")
    return maker  # type: ignore[no-any-return]


def _check_options(maker: Callable[..., Any], config: EnvironmentConfig) -> None:
    try:
        signature = inspect.signature(maker)
    except ValueError:  # some classes written in C tell no signature
        return
    try:
        signature.bind(**config.options)
    except TypeError as error:
        raise ValueError(
            f"environment.options do not fit {_FACTORY} ({config.factory}{signature}): {error}"
        ) from error


def _check_environment(environment: object, config: EnvironmentConfig) -> None:
    """An environment or a class of them: three methods that take what they are given."""
    path, on_loop = config.factory, config.runs_in == "loop"
    for name, arguments in _METHODS.items():
        method = getattr(environment, name, None)
        if not callable(method) or inspect.iscoroutinefunction(method) is not on_loop:
            state = "missing"
            if callable(method):
                state = "not `async`" if on_loop else "`async`"
            raise ValueError(
                f"{_FACTORY} ({path!r}): method {name!r} is {state}. {_remedy(config)}"
            )
        given = [None, *arguments] if inspect.isclass(environment) else [*arguments]
        try:
            inspect.signature(method).bind(*given)
        except TypeError as error:
            raise ValueError(
                f"{_FACTORY} ({path!r}): method {name!r} must take ({', '.join(arguments)}): "
                f"{error}"
            ) from error


def _remedy(config: EnvironmentConfig) -> str:
    if config.runs_in == "loop":
        return (
            "An environment has `async def reset(prompt, seed)`, `step(action)` and `close()` "
            "(colocate.ports.Environment); put blocking work in `asyncio.to_thread`, since it "
            "would hold up every other trajectory. Or write all three as plain functions, and set "
            "environment.runs_in to `thread`"
        )
    return (
        f"With environment.runs_in={config.runs_in} an environment has plain `def reset(prompt, "
        "seed)`, `step(action)` and `close()` (colocate.ports.BlockingEnvironment); coroutines "
        "take environment.runs_in=loop"
    )
