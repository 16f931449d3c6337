"""Finished trajectories, and reward functions as people write them."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from fractions import Fraction
from typing import Any

from colocate.ports import Prompt
from colocate.rollout.runner import Episode

HERE = "tests.rewards.episodes"


def episode(*turns: str, prompt: str = "What?", reward: float = 0.0, **columns: Any) -> Episode:
    """Turns of agent and environment, by turns."""
    speakers = ["agent", "environment"] * len(turns)
    return Episode(
        prompt=Prompt(text=prompt, columns=columns),
        turns=(("prompt", prompt), *zip(speakers, turns, strict=False)),
        environment_reward=reward,
        facts={},
    )


def length(trajectory: Episode) -> int:
    return len(trajectory.completion)


def matches(trajectory: Episode, answer: str, bonus: float = 0.0) -> float:
    return (trajectory.last_turn == answer) + bonus


def everything(trajectory: Episode, **columns: Any) -> int:
    return len(columns)


async def awaited(trajectory: Episode, answer: str = "none") -> float:
    await asyncio.sleep(0)
    return 1.0 if trajectory.last_turn == answer else 0.25


async def hangs_politely(trajectory: Episode) -> float:
    await asyncio.sleep(3600)
    return 1.0


async def cancels_itself(trajectory: Episode) -> float:
    raise asyncio.CancelledError("mine")


async def exits(trajectory: Episode) -> float:
    raise SystemExit(3)


def hangs(trajectory: Episode) -> float:
    time.sleep(3600)
    return 1.0


def hangs_if_asked(trajectory: Episode, wait: bool) -> float:
    if wait:
        time.sleep(3600)
    return float(os.getpid())


def spins(trajectory: Episode) -> float:
    while True:
        pass


def raises(trajectory: Episode) -> float:
    raise LookupError("nothing there")


def leaves(trajectory: Episode) -> float:
    raise SystemExit(3)


def dies(trajectory: Episode) -> float:
    os.kill(os.getpid(), signal.SIGKILL)
    return 1.0


def talks(trajectory: Episode) -> float:
    print("this must not get between the frames" * 1000)
    os.write(1, b"nor this")
    return 0.5


def process_id(trajectory: Episode) -> float:
    return float(os.getpid())


def returns(trajectory: Episode, what: str) -> Any:
    return {
        "none": None,
        "text": "0.5",
        "nan": float("nan"),
        "infinite": float("inf"),
        "list": [1.0],
        "complex": 1j,
        "huge": 10**400,
        "true": True,
        "fraction": Fraction(1, 4),
        "integer": 3,
    }[what]


class Counts:
    """Made once in each process."""

    def __init__(self, start: int = 0) -> None:
        self.count = start

    def __call__(self, trajectory: Episode) -> float:
        self.count += 1
        return float(self.count)


class Closes:
    closed = 0

    async def __call__(self, trajectory: Episode) -> float:
        return 1.0

    async def close(self) -> None:
        Closes.closed += 1


def trl_length(completions: list[str], **kwargs: Any) -> list[float]:
    return [float(len(completion)) for completion in completions]


def trl_answer(prompts: list[str], completions: list[str], answer: list[str]) -> list[float]:
    return [
        float(prompt == "What?" and completion == right)
        for prompt, completion, right in zip(prompts, completions, answer, strict=True)
    ]


def trl_chat(prompts: Any, completions: Any, **kwargs: Any) -> list[float]:
    assert prompts == [[{"role": "user", "content": "What?"}]]
    return [float(completion[0]["content"] == "that") for completion in completions]


def trl_sometimes(completions: list[str], **kwargs: Any) -> list[float | None]:
    return [1.0 if completion.startswith("a") else None for completion in completions]


def trl_too_many(completions: list[str], **kwargs: Any) -> list[float]:
    return [1.0, 2.0]


def trl_no_list(completions: list[str], **kwargs: Any) -> float:
    return 1.0


async def trl_awaited(completions: list[str], **kwargs: Any) -> list[float]:
    await asyncio.sleep(0)
    return [2.0 for _ in completions]


class NoCall:
    pass


def takes_nothing() -> float:
    return 1.0


not_callable = 3
