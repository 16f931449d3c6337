"""Environments that block, in threads: `environment.runs_in=thread`."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from typing import Any

import pytest

from colocate.adapters.environments.factory import make_environment_factory
from colocate.config import EnvironmentConfig
from colocate.core.types import TrajectoryId
from colocate.ports import Environment, Prompt, StepOutcome
from colocate.rollout.guarded import EnvironmentFault, GuardedEnvironment
from tests.patience import patient


class Held:
    """Each step waits until the test lets it go on."""

    is_replayable = True

    def __init__(self, log: list[str]) -> None:
        self._log = log
        self.thread = threading.current_thread()

    def reset(self, prompt: Prompt, seed: int) -> str:
        self._name = prompt.text
        HELD[self._name] = self
        self.begun, self.go_on, self.closed = (threading.Event() for _ in range(3))
        return f"{prompt.text} {seed}"

    def step(self, action: str) -> StepOutcome:
        self._log.append(f"{self._name} steps")
        self.begun.set()
        self.go_on.wait()
        self._log.append(f"{self._name} has stepped")
        return StepOutcome(observation=action, facts={"thread": threading.current_thread()})

    def close(self) -> None:
        self._log.append(f"{self._name} closes")
        self.closed.set()


HELD: dict[str, Held] = {}


class Raising:
    def __init__(self, what: str) -> None:
        self._what = what

    def reset(self, prompt: Prompt, seed: int) -> str:
        return ""

    def step(self, action: str) -> StepOutcome:
        if self._what == "exit":
            sys.exit(3)
        raise StopIteration(self._what)

    def close(self) -> None:
        return


class OnTheLoop:
    async def reset(self, prompt: Prompt, seed: int) -> str:
        return ""

    async def step(self, action: str) -> StepOutcome:
        return StepOutcome(observation="")

    async def close(self) -> None:
        return


def make_on_the_loop() -> OnTheLoop:
    return OnTheLoop()


def config(name: str, most: int | None = None, **options: Any) -> EnvironmentConfig:
    return EnvironmentConfig(
        factory=f"{__name__}:{name}", options=options, runs_in="thread", max_concurrent=most
    )


async def begun(name: str = "it") -> None:
    assert await asyncio.to_thread(HELD[name].begun.wait, patient(10))


async def test_the_loop_goes_on_while_an_environment_blocks() -> None:
    environment = make_environment_factory(config("Held", log=[]))()
    assert isinstance(environment, Environment)
    assert await environment.reset(Prompt(text="it"), 3) == "it 3"
    assert HELD["it"].thread is not threading.current_thread()
    step = asyncio.create_task(environment.step("b"))
    await begun()
    assert not step.done()
    HELD["it"].go_on.set()
    outcome = await step
    assert outcome.observation == "b"
    assert outcome.facts["thread"] is not threading.current_thread()
    await environment.close()


async def test_a_step_that_is_given_up_is_closed_after_it_has_ended() -> None:
    log: list[str] = []
    make = make_environment_factory(config("Held", log=log))
    environment = GuardedEnvironment(make, TrajectoryId(0), limit_s=patient(10))
    await environment.reset(Prompt(text="it"), 0)
    step = asyncio.create_task(environment.step(""))
    await begun()
    step.cancel()
    with pytest.raises(asyncio.CancelledError):
        await step
    await environment.close()
    assert log == ["it steps"]
    HELD["it"].go_on.set()
    assert await asyncio.to_thread(HELD["it"].closed.wait, patient(10))
    assert log == ["it steps", "it has stepped", "it closes"]


async def test_no_more_of_them_work_at_once_than_is_allowed() -> None:
    log: list[str] = []
    make = make_environment_factory(config("Held", most=1, log=log))
    one, other = make(), make()
    await one.reset(Prompt(text="one"), 0)
    await other.reset(Prompt(text="other"), 0)
    steps = [asyncio.create_task(each.step("")) for each in (one, other)]
    await begun("one")
    assert not HELD["other"].begun.is_set()
    HELD["one"].go_on.set()
    await begun("other")
    HELD["other"].go_on.set()
    await asyncio.gather(*steps)
    assert log == ["one steps", "one has stepped", "other steps", "other has stepped"]


@pytest.mark.parametrize("what", ["exit", "stop"])
async def test_whatever_it_raises_is_a_fault_and_ends_neither_loop_nor_thread(what: str) -> None:
    make = make_environment_factory(config("Raising", what=what))
    for _ in range(2):
        environment = GuardedEnvironment(make, TrajectoryId(0), limit_s=patient(10))
        await environment.reset(Prompt(text=""), 0)
        with pytest.raises(EnvironmentFault, match=r"SystemExit: 3|StopIteration: stop"):
            await environment.step("")
        await environment.close()


def test_whether_it_can_be_replayed_is_asked_of_the_class() -> None:
    held = make_environment_factory(config("Held", log=[]))()
    assert getattr(held, "is_replayable", False) is True
    raising = make_environment_factory(config("Raising", what=""))()
    assert getattr(raising, "is_replayable", True) is False


async def test_coroutines_are_refused_with_the_remedy() -> None:
    with pytest.raises(ValueError, match=r"is `async`.*environment\.runs_in=loop"):
        make_environment_factory(config("OnTheLoop"))
    environment = make_environment_factory(config("make_on_the_loop"))()
    with pytest.raises(ValueError, match=r"is `async`"):
        await environment.reset(Prompt(text=""), 0)


HANGS = """
import asyncio, threading
from colocate.adapters.environments.threads import Threads

async def main():
    begun = threading.Event()
    def hang():
        begun.set()
        threading.Event().wait()
    call = Threads().start(hang)
    await asyncio.to_thread(begun.wait)
    call.cancel()

asyncio.run(main())
print("ended")
"""


def test_a_call_that_hangs_does_not_hold_up_the_end_of_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS],
        capture_output=True,
        text=True,
        check=True,
        timeout=patient(60),
    )
    assert done.stdout == "ended\n"
