"""The model works in a shell, in the folder of a task, until it says that it is done.

task + how to run a command --> turn with a command --> its output --> ... --> a last word
                                                                             |
                                          folder as it is now --> checker <--+
"""

from __future__ import annotations

from typing import Any

from colocate.environments.answers import given_answer
from colocate.environments.calls import Call, Grammar, Malformed, Tool, check_grammar, find_call
from colocate.environments.calls import instructions as how_to_call
from colocate.environments.checkers import is_done
from colocate.environments.folders import pack, run_in
from colocate.environments.programs import limits, shown
from colocate.ports import Prompt, StepOutcome
from colocate.sandbox.run import Isolation

SHELL = Tool(name="terminal", argument="command", languages=("bash", "sh", "shell", "console", ""))


class Terminal:
    """One task. ``prompt.columns``: ``files`` of its folder (text by path) and ``check``.

    Each command is a shell's own, begun in the task's folder; files stay, variables and the current
    folder do not. A turn without a command ends the episode, and earns 1 where the check
    (``checkers``) is passed.

    Args:
        grammar: Of calls.
        command_reward: Earned once, by the first command that exits with 0 and prints something.
        timeout_s: Of one command, and of the check.
        max_output_characters: What the model is shown of a command's output.
        isolation: Of the sandbox.

    Raises:
        ValueError: an unknown grammar.
    """

    def __init__(
        self,
        grammar: Grammar = "fenced",
        command_reward: float = 0.0,
        timeout_s: float = 10.0,
        max_output_characters: int = 1000,
        isolation: Isolation = "namespaces",
    ) -> None:
        check_grammar(grammar)
        self._grammar: Grammar = grammar
        self._command_reward = command_reward
        self._limits = limits(timeout_s)
        self._max_output_characters = max_output_characters
        self._isolation: Isolation = isolation
        self._folder = b""
        self._check: dict[str, Any] = {}
        self._facts = {"commands": 0, "sound_commands": 0, "malformed_calls": 0}

    async def reset(self, prompt: Prompt, seed: int) -> str:
        self._folder = pack(prompt.columns["files"])
        self._check = dict(prompt.columns["check"])
        call = how_to_call(SHELL, self._grammar, "ls")
        return (
            "\n\nYou work in a Linux shell, in the folder of this task. To run a command, write it "
            f"like this, and wait for its output:\n\n{call}\n\nWhen you are done, say so without a "
            "command. If you were asked for something, write it on a line of its own, like "
            "this:\nAnswer: 42\n"
        )

    async def step(self, action: str) -> StepOutcome:
        call = find_call(action, SHELL, self._grammar)
        if call is None:
            return await self._end(given_answer(action))
        if isinstance(call, Malformed):
            self._facts["malformed_calls"] += 1
            return StepOutcome(observation=f"\nError: {call.reason}\n", facts=dict(self._facts))
        return await self._run(call)

    async def close(self) -> None:
        return

    async def _run(self, call: Call) -> StepOutcome:
        result, folder = await run_in(self._folder, call.text, self._limits, self._isolation)
        self._facts["commands"] += 1
        reward = 0.0
        if result.succeeded and result.stdout.strip():
            reward = 0.0 if self._facts["sound_commands"] else self._command_reward
            self._facts["sound_commands"] += 1
        text = shown(result, self._max_output_characters)
        if folder is None:
            text += "\n[the folder is as it was before this command]"
        else:
            self._folder = folder
        observation = f"\nOutput:\n```\n{text}\n```\n"
        return StepOutcome(observation=observation, reward=reward, facts=dict(self._facts))

    async def _end(self, answer: str | None) -> StepOutcome:
        done = await is_done(self._check, self._folder, answer, self._limits, self._isolation)
        facts: dict[str, Any] = {**self._facts, "answered": answer is not None, "right": done}
        return StepOutcome(observation="", reward=float(done), done=True, facts=facts)
