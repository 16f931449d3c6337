"""Code that the agent wrote, run against tests in the sandbox."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from colocate.rollout.runner import Episode
from colocate.sandbox.limits import MIB, SandboxLimits
from colocate.sandbox.run import Isolation, run_python

_BLOCK = re.compile(r"```(?:python|py)?[ \t]*\n(.*?)(?:```|\Z)", re.DOTALL)
_CHECK = """\
import json, sys
task = json.loads(sys.stdin.readline())
space = {"__name__": "solution"}
exec(compile(task["code"], "solution.py", "exec"), space)
exec(compile(task["test"], "test.py", "exec"), space)
sys.__stdout__.write("\\n" + task["word"] + "\\n")
"""


class CodeTests:
    """The share of tests that pass, or 1 where all do and else 0.

    The code is the last Python block of the agent's last turn (the whole turn where there is no
    block). A test is Python with assertions, run after the code; or a mapping of ``input`` and
    ``output``, texts for standard input and of standard output (white space at line ends and at
    the end is not compared). Each test is a run of its own in the sandbox.

    A test with assertions shares a process with the code. It passes only where a word that is made
    up for the run is printed after it, so to exit early does not pass; code that goes looking for
    the word in the interpreter could find it. Tests of input and output are compared outside.

    Args:
        column: Of the data set: a test, or a list of them.
        share: Reward the share that passes, and not only all.
        wall_s: Of each test, in seconds.
        memory_bytes: Of each test.
        max_parallel: Sandboxes at a time, over all trajectories.
        isolation: As of ``colocate.sandbox.run``.
    """

    def __init__(
        self,
        column: str = "tests",
        share: bool = False,
        wall_s: float = 10.0,
        memory_bytes: int = 512 * MIB,
        max_parallel: int = 4,
        isolation: Isolation = "namespaces",
    ) -> None:
        self._column = column
        self._share = share
        self._limits = SandboxLimits(wall_s=wall_s, cpu_s=wall_s, memory_bytes=memory_bytes)
        self._slots = asyncio.Semaphore(max_parallel)
        self._isolation = isolation

    async def __call__(self, trajectory: Episode, **columns: Any) -> float:
        tests = self._tests(columns)
        code = extract_code(trajectory.last_turn)
        if not code.strip():
            return 0.0
        num_passed = 0
        for number, test in enumerate(tests, start=1):
            num_passed += await self._passes(code, test)
            if num_passed < number and not self._share:
                return 0.0
        return num_passed / len(tests)

    def _tests(self, columns: Mapping[str, Any]) -> Sequence[Any]:
        tests = columns.get(self._column)
        if isinstance(tests, (str, Mapping)):
            tests = [tests]
        if not isinstance(tests, Sequence) or not tests:
            raise LookupError(
                f"the prompt has no tests in the column `{self._column}`; name another with the "
                "option `column`"
            )
        return tests

    async def _passes(self, code: str, test: Any) -> bool:
        if isinstance(test, str):
            return await self._holds(code, test)
        if isinstance(test, Mapping) and {"input", "output"} <= test.keys():
            return await self._answers(code, str(test["input"]), str(test["output"]))
        raise TypeError(
            f"a test must be Python code, or a mapping of `input` and `output`, not {test!r}"
        )

    async def _holds(self, code: str, test: str) -> bool:
        word = secrets.token_hex(16)
        task = json.dumps({"code": code, "test": test, "word": word}) + "\n"
        async with self._slots:
            result = await run_python(
                _CHECK, stdin=task.encode(), limits=self._limits, isolation=self._isolation
            )
        lines = result.stdout.decode(errors="replace").split("\n")
        return result.succeeded and word in lines

    async def _answers(self, code: str, given: str, expected: str) -> bool:
        async with self._slots:
            result = await run_python(
                code, stdin=given.encode(), limits=self._limits, isolation=self._isolation
            )
        printed = result.stdout.decode(errors="replace")
        return result.succeeded and _plain(printed) == _plain(expected)


def extract_code(text: str) -> str:
    """The last fenced block that is Python's or nobody's, cut off ones included; else the text."""
    blocks = _BLOCK.findall(text)
    return blocks[-1] if blocks else text


def _plain(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]
