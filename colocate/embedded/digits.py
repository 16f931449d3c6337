"""The embedded task: find a hidden digit by asking; binary search is optimal."""

from __future__ import annotations

import math
import re

from colocate.core.types import GroupId
from colocate.ports import Prompt, StepOutcome

QUESTION = "0-9?\n"
NUM_DIGITS = 10
_GUESS = re.compile(r"([0-9])\n")


class DigitPrompts:
    """Ten prompts, one a secret digit, over and over: a step of ten groups has each digit once."""

    def prompt(self, position: GroupId) -> Prompt:
        return Prompt(text=QUESTION, columns={"secret": position % NUM_DIGITS})


class DigitSearch:
    """One search. The agent writes a digit and a newline; the answer is ``low``, ``high``, ``bad``.

    ``low`` says that the guess is below the secret. The reward comes with the last turn: found at
    turn ``n`` gives ``1 - 0.1 (n - 1)``; not found gives ``0.1 x share of valid turns`` plus up
    to 0.2 for what was narrowed down, in bits, so that the way to a first success has a slope.
    The best strategy's mean is 0.81 over the ten digits: searches of length 1, 2, 2, 3, 3, 3, 3,
    4, 4, 4, that is ``1 - 0.1 x 1.9``.
    """

    is_replayable = True

    def __init__(self, max_turns: int = 5) -> None:
        self._max_turns = max_turns
        self._secret = 0
        self._turn = 0
        self._num_valid = 0
        self._lowest = 0
        self._highest = NUM_DIGITS - 1

    async def reset(self, prompt: Prompt, seed: int) -> str:
        self._secret = int(prompt.columns["secret"])
        return ""

    async def step(self, action: str) -> StepOutcome:
        self._turn += 1
        match = _GUESS.fullmatch(action)
        if match is None:
            answer = "bad\n"
        else:
            guess = int(match[1])
            self._num_valid += 1
            if guess == self._secret:
                return StepOutcome(observation="", reward=1 - 0.1 * (self._turn - 1), done=True)
            if guess < self._secret:
                answer = "low\n"
                self._lowest = max(self._lowest, guess + 1)
            else:
                answer = "high\n"
                self._highest = min(self._highest, guess - 1)
        if self._turn < self._max_turns:
            return StepOutcome(observation=answer)
        return StepOutcome(observation="", reward=self._consolation(), done=True)

    async def close(self) -> None:
        return

    def _consolation(self) -> float:
        num_possible = self._highest - self._lowest + 1
        narrowed = math.log2(NUM_DIGITS / num_possible) / math.log2(NUM_DIGITS)
        return 0.1 * self._num_valid / self._max_turns + 0.2 * narrowed
