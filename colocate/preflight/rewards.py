"""Rules of the reward: its functions can be called, and take what they will be given."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from colocate.config import RewardConfig, RewardTerm
from colocate.preflight.callables import NotFoundError, load, not_found
from colocate.preflight.table import rule
from colocate.problems import Problem
from colocate.rewards.functions import TRL_MARK

_OURS = "colocate.rewards."


@rule("reward")
def _reward_functions_can_be_called(tree: Mapping[str, Any]) -> Iterator[Problem]:
    config = RewardConfig.model_validate(tree)
    if config.options and config.function is None:
        yield Problem(
            field="reward.options",
            value=dict(config.options),
            rule="has no meaning without reward.function",
            remedy="name the function, or give options within reward.functions",
        )
    for path, term in _paths(config):
        yield from _function_can_be_called(path, term)
    for name, count in Counter(term.label for term in config.terms).items():
        if count > 1:
            yield Problem(
                field="reward.functions",
                value=name,
                rule="two functions must not have one name, under which their means are reported",
                remedy="give one of them another `name`",
            )


def _paths(config: RewardConfig) -> Iterator[tuple[str, RewardTerm]]:
    if config.function is not None:
        yield "reward", config.terms[0]
    for number, term in enumerate(config.functions):
        yield f"reward.functions.{number}", term


def _function_can_be_called(path: str, term: RewardTerm) -> Iterator[Problem]:
    field = f"{path}.function"
    try:
        target = load(term.function)
    except NotFoundError as error:
        yield not_found(field, term.function, error)
        return
    call = target.__call__ if inspect.isclass(target) else target
    if inspect.isclass(target) and not inspect.isfunction(call):
        yield Problem(
            field=field,
            value=term.function,
            rule="must be a function, or a class whose objects can be called; it has no __call__",
            remedy="give the class a method __call__(self, trajectory, **columns)",
        )
        return
    if inspect.isclass(target):
        reason = _class_refuses(target, term)
    else:
        reason = _function_refuses(call, term.options)
    if reason is not None:
        yield Problem(
            field=f"{path}.options",
            value=dict(term.options),
            rule=f"must be arguments that {term.function} accepts: {reason}",
            remedy=f"its signature is {_signature(target)}",
        )
    elif not _takes_a_trajectory(target, call):
        yield Problem(
            field=field,
            value=term.function,
            rule="must take the trajectory as its first argument, or have a parameter "
            f"`{TRL_MARK}` as TRL's reward functions have",
            remedy="write fn(trajectory, **columns); see rewards-and-data.md",
        )


def _class_refuses(target: Any, term: RewardTerm) -> str | None:
    try:
        inspect.signature(target).bind(**term.options)
    except TypeError as error:
        return str(error)
    except ValueError:  # some classes written in C tell no signature
        return None
    if term.function.startswith(_OURS):
        # Ours check their options when they are made, and do nothing else.
        try:
            target(**term.options)
        except Exception as error:
            return str(error)
    return None


def _function_refuses(call: Any, options: Mapping[str, Any]) -> str | None:
    try:
        inspect.signature(call).bind_partial(**options)
    except TypeError as error:
        return str(error)
    except ValueError:
        return None
    return None


def _takes_a_trajectory(target: Any, call: Any) -> bool:
    try:
        parameters = list(inspect.signature(call).parameters.values())
    except (TypeError, ValueError):
        return True
    if any(parameter.name == TRL_MARK for parameter in parameters):
        return True
    first = parameters[1 if inspect.isclass(target) else 0 :][:1]
    by_position = (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        inspect.Parameter.VAR_POSITIONAL,
    )
    return bool(first) and first[0].kind in by_position


def _signature(target: Any) -> str:
    try:
        return str(inspect.signature(target))
    except (TypeError, ValueError):
        return "not told"


@rule("reward.timeout_s", "environment.step_timeout_s")
def _reward_deadline_is_within_the_steps(
    timeout_s: float | None, step_timeout_s: float
) -> Iterator[Problem]:
    if timeout_s is not None and timeout_s > step_timeout_s:
        yield Problem(
            field="reward.timeout_s",
            value=timeout_s,
            rule=f"must be at most environment.step_timeout_s = {step_timeout_s:g}, which bounds "
            "all of a trajectory's reward functions together",
            remedy=f"set reward.timeout_s={step_timeout_s:g} or less, or raise the other",
        )
