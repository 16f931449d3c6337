"""From the configuration to a maker of environments."""

from __future__ import annotations

import asyncio
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from colocate.adapters.environments.latency import DelayedEnvironment, make_latency
from colocate.adapters.environments.limit import LimitedEnvironment
from colocate.config import EnvironmentConfig
from colocate.ports import Environment, EnvironmentFactory

_METHODS = {"reset": ("prompt", "seed"), "step": ("action",), "close": ()}
_FACTORY = "environment.factory"


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
        _check_environment(maker, config.factory)
    latency = make_latency(config.latency)
    most = config.max_concurrent
    room = None if most is None else asyncio.Semaphore(most)

    def make() -> Environment:
        environment = maker(**config.options)
        if not inspect.isclass(maker):
            _check_environment(environment, config.factory)
        if room is not None:
            environment = LimitedEnvironment(environment, room)
        return environment if latency is None else DelayedEnvironment(environment, latency)

    return make


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


def _check_environment(environment: object, path: str) -> None:
    """An environment or a class of them: three coroutine methods that take what they are given."""
    for name, arguments in _METHODS.items():
        method = getattr(environment, name, None)
        if not inspect.iscoroutinefunction(method):
            state = "missing" if method is None else "not `async`"
            raise ValueError(
                f"{_FACTORY} ({path!r}): method {name!r} is {state}. An environment has `async "
                "def reset(prompt, seed)`, `step(action)` and `close()` "
                "(colocate.ports.Environment); put blocking work in `asyncio.to_thread`, since "
                "it would hold up every other trajectory"
            )
        given = [None, *arguments] if inspect.isclass(environment) else [*arguments]
        try:
            inspect.signature(method).bind(*given)
        except TypeError as error:
            raise ValueError(
                f"{_FACTORY} ({path!r}): method {name!r} must take ({', '.join(arguments)}): "
                f"{error}"
            ) from error
