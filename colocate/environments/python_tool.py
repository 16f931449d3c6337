"""The model writes Python, which runs in the sandbox, reads what it printed, and answers.

question + how to call --> turn with a program --> its output --> ... --> turn with an answer
"""

from __future__ import annotations

from typing import Any

from colocate.environments.answers import given_answer, is_same
from colocate.environments.calls import Call, Grammar, Malformed, Tool, check_grammar, find_call
from colocate.environments.calls import instructions as how_to_call
from colocate.environments.programs import limits, shown
from colocate.ports import Prompt, StepOutcome
from colocate.sandbox.run import Isolation, run_python

PYTHON = Tool(name="python", argument="code", languages=("python", "py", ""))


class PythonTool:
    """One question. ``prompt.columns["answer"]`` is what is wanted.

    Each program runs for itself: nothing is left of the one before. A turn without a program ends
    the episode. Its answer, on a line ``Answer: ...``, earns 1.

    Args:
        grammar: Of calls.
        program_reward: Earned once, by the first program that runs to its end without an error and
            prints something. It gives models that hardly ever answer a slope to begin on.
        timeout_s: Of one program.
        max_output_characters: What the model is shown of its output.
        isolation: Of the sandbox.

    Raises:
        ValueError: an unknown grammar.
    """

    def __init__(
        self,
        grammar: Grammar = "fenced",
        program_reward: float = 0.0,
        timeout_s: float = 10.0,
        max_output_characters: int = 1000,
        isolation: Isolation = "namespaces",
    ) -> None:
        check_grammar(grammar)
        self._grammar: Grammar = grammar
        self._program_reward = program_reward
        self._timeout_s = timeout_s
        self._max_output_characters = max_output_characters
        self._isolation: Isolation = isolation
        self._wanted = ""
        self._facts = {"programs": 0, "sound_programs": 0, "malformed_calls": 0}

    async def reset(self, prompt: Prompt, seed: int) -> str:
        self._wanted = str(prompt.columns["answer"])
        call = how_to_call(PYTHON, self._grammar, "print(6 * 7)")
        return (
            "\n\nYou can run Python programs. To run one, write it like this, and wait for its "
            f"output:\n\n{call}\n\nWhen you know the answer, write it on a line of its own, like "
            "this:\nAnswer: 42\n"
        )

    async def step(self, action: str) -> StepOutcome:
        call = find_call(action, PYTHON, self._grammar)
        if call is None:
            return self._end(given_answer(action))
        if isinstance(call, Malformed):
            self._facts["malformed_calls"] += 1
            return StepOutcome(observation=f"\nError: {call.reason}\n", facts=dict(self._facts))
        return await self._run(call)

    async def close(self) -> None:
        return

    async def _run(self, call: Call) -> StepOutcome:
        result = await run_python(
            call.text, limits=limits(self._timeout_s), isolation=self._isolation
        )
        self._facts["programs"] += 1
        reward = 0.0
        if result.succeeded and result.stdout.strip():
            reward = 0.0 if self._facts["sound_programs"] else self._program_reward
            self._facts["sound_programs"] += 1
        text = shown(result, self._max_output_characters)
        observation = f"\nOutput:\n```\n{text}\n```\n"
        return StepOutcome(observation=observation, reward=reward, facts=dict(self._facts))

    def _end(self, given: str | None) -> StepOutcome:
        right = given is not None and is_same(given, self._wanted)
        facts: dict[str, Any] = {**self._facts, "answered": given is not None, "right": right}
        return StepOutcome(observation="", reward=float(right), done=True, facts=facts)
