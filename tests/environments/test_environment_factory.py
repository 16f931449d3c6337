"""What `environment.factory` may name, and what is said when it names something else."""

from __future__ import annotations

from typing import Any

import pytest

from colocate.adapters.environments.factory import make_environment_factory
from colocate.adapters.environments.latency import DelayedEnvironment
from colocate.config import EnvironmentConfig, LatencyConfig
from colocate.embedded.digits import DigitSearch
from colocate.ports import Prompt, StepOutcome


class Blocking:
    def reset(self, prompt: Prompt, seed: int) -> str:
        return ""

    def step(self, action: str) -> StepOutcome:
        return StepOutcome(observation="")

    def close(self) -> None:
        return


class Incomplete:
    async def reset(self, prompt: Prompt, seed: int) -> str:
        return ""


class TakesTooMuch(DigitSearch):
    async def step(self, action: str, patience: float) -> StepOutcome:  # type: ignore[override]
        return await super().step(action)


def make_digits(max_turns: int) -> DigitSearch:
    return DigitSearch(max_turns)


def make_blocking() -> Blocking:
    return Blocking()


def config(name: str, options: dict[str, Any] | None = None, **latency: Any) -> EnvironmentConfig:
    path = name if ":" in name else f"{__name__}:{name}"
    return EnvironmentConfig(factory=path, options=options or {}, latency=LatencyConfig(**latency))


def test_each_call_makes_a_fresh_environment_with_the_options() -> None:
    make = make_environment_factory(
        config("colocate.embedded.digits:DigitSearch", {"max_turns": 2})
    )
    first, second = make(), make()
    assert first is not second
    assert isinstance(first, DigitSearch)


async def test_options_reach_the_environment() -> None:
    for name in ("colocate.embedded.digits:DigitSearch", "make_digits"):
        environment = make_environment_factory(config(name, {"max_turns": 1}))()
        await environment.reset(Prompt(text="", columns={"secret": 3}), 0)
        assert (await environment.step("9\n")).done


def test_latency_wraps_the_environment_only_where_it_is_on() -> None:
    name = "colocate.embedded.digits:DigitSearch"
    assert isinstance(
        make_environment_factory(config(name, kind="lognormal"))(), DelayedEnvironment
    )
    assert isinstance(make_environment_factory(config(name))(), DigitSearch)


@pytest.mark.parametrize(
    ("name", "options", "reason"),
    [
        ("no_such_module:Thing", {}, "'no_such_module' cannot be imported"),
        ("colocate.embedded.digits:Missing", {}, "has no 'Missing'"),
        ("colocate.embedded.digits:NUM_DIGITS", {}, "has no callable 'NUM_DIGITS'"),
        ("colocate.embedded.digits:DigitSearch", {"turns": 2}, "environment.options do not fit"),
        ("make_digits", {}, "missing a required argument: 'max_turns'"),
        ("Blocking", {}, "method 'reset' is not `async`"),
        ("Incomplete", {}, "method 'step' is missing"),
        ("TakesTooMuch", {}, r"method 'step' must take \(action\)"),
    ],
)
def test_what_is_no_environment_is_refused_before_the_run(
    name: str, options: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValueError, match=reason):
        make_environment_factory(config(name, options))


def test_a_function_that_makes_blocking_environments_is_refused_at_its_first() -> None:
    make = make_environment_factory(config("make_blocking"))
    with pytest.raises(ValueError, match=r"asyncio\.to_thread"):
        make()
