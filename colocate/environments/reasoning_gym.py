"""Tasks of the package reasoning-gym: one question, one answer, scored by the package's scorer."""

from __future__ import annotations

import asyncio
import functools
import importlib
import re
from collections.abc import Mapping
from typing import Any

from colocate.core.types import GroupId
from colocate.ports import Prompt, StepOutcome

_TAGGED = re.compile(r"<answer>(.*?)</answer>", re.S)


def _package() -> Any:
    try:
        return importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise ModuleNotFoundError(
            "environment=reasoning_gym takes the package reasoning-gym: "
            f"pip install 'colocate[reasoning-gym]' ({error})"
        ) from error


class ReasoningGymPrompts:
    """Questions of one of the package's tasks; after ``size`` of them they begin again.

    Args:
        task: Its name, as ``chain_sum``.
        seed: Of the questions.
        size: How many different ones.
        options: The task's own, as ``{min_terms: 2, max_terms: 2}``.
        instruction: Put after each question.

    Raises:
        ModuleNotFoundError: the package is not installed.
        ValueError: no such task, or options that it does not take.
    """

    def __init__(
        self,
        task: str,
        seed: int = 0,
        size: int = 10_000,
        options: Mapping[str, Any] | None = None,
        instruction: str = "",
    ) -> None:
        self._task = task
        self._size = size
        self._instruction = instruction
        try:
            self._dataset = _package().create_dataset(
                task, seed=seed, size=size, **dict(options or {})
            )
        except (AssertionError, TypeError, ValueError) as error:
            raise ValueError(
                f"data.options: reasoning-gym does not make the task {task!r} with "
                f"{dict(options or {})}: {error}"
            ) from error

    def prompt(self, position: GroupId) -> Prompt:
        entry = self._dataset[position % self._size]
        lines = [entry["question"], *filter(None, [self._instruction])]
        return Prompt(text="\n".join(lines), columns={"task": self._task, "entry": entry})


class ReasoningGym:
    """One question. The answer is what stands in ``<answer>...</answer>``, else the whole turn.

    The reward is the scorer's, from 0 to 1; some scorers give part of it for part of an answer.
    """

    def __init__(self) -> None:
        self._prompt = Prompt(text="")

    async def reset(self, prompt: Prompt, seed: int) -> str:
        self._prompt = prompt
        return ""

    async def step(self, action: str) -> StepOutcome:
        tagged = _TAGGED.findall(action)
        answer = (tagged[-1] if tagged else action).strip()
        # Some scorers run solvers.
        score = await asyncio.to_thread(_score, self._prompt.columns, answer)
        facts = {"answer": answer, "right": score == 1.0}
        return StepOutcome(observation="", reward=score, done=True, facts=facts)

    async def close(self) -> None:
        return


def _score(columns: Mapping[str, Any], answer: str) -> float:
    return float(_scorer(columns["task"])(answer, columns["entry"]))


@functools.cache
def _scorer(task: str) -> Any:
    return _package().get_score_answer_fn(task)
