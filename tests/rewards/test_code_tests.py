"""Code that passes its tests, and code that only looks like it, in real sandboxes."""

from __future__ import annotations

from typing import Any

import pytest

from colocate.rewards.code_tests import CodeTests, extract_code
from colocate.sandbox.result import SandboxUnavailableError
from colocate.sandbox.run import check
from tests.rewards.episodes import episode

ADDS = "```python\ndef add(a, b):\n    return a + b\n```"
SUBTRACTS = ADDS.replace("a + b", "a - b")
TESTS = ["assert add(1, 2) == 3", "assert add(0, 0) == 0"]


@pytest.fixture(autouse=True)
async def sandbox() -> None:
    try:
        await check()
    except SandboxUnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(
    ("text", "tests", "options", "value"),
    [
        (ADDS, TESTS, {}, 1.0),
        (ADDS, "assert add(2, 2) == 4", {}, 1.0),
        (SUBTRACTS, TESTS, {}, 0.0),
        (SUBTRACTS, TESTS, {"share": True}, 0.5),
        ("def add(a, b): return a + b", TESTS, {}, 1.0),
        ("```python\ndef add(a, b:\n```", TESTS, {"share": True}, 0.0),
        ("", TESTS, {}, 0.0),
        ("```python\nimport sys; sys.exit(0)\n```", TESTS, {"share": True}, 0.0),
        ("```python\nimport os; os._exit(0)\n```", TESTS, {"share": True}, 0.0),
        ("```python\nwhile True: pass\n```", TESTS[:1], {"wall_s": 1.0}, 0.0),
        (
            "```python\nprint(int(input()) * 2)\n```",
            [{"input": "21\n", "output": "42"}, {"input": "0\n", "output": "0\n\n"}],
            {},
            1.0,
        ),
        (
            "```python\nprint(42)\n```",
            [{"input": "21\n", "output": "42"}, {"input": "0\n", "output": "0"}],
            {"share": True},
            0.5,
        ),
    ],
)
async def test_code_is_run_against_its_tests(
    text: str, tests: Any, options: dict[str, Any], value: float
) -> None:
    assert await CodeTests(**options)(episode(text), tests=tests) == value


@pytest.mark.parametrize(
    ("columns", "error", "named"),
    [
        ({}, LookupError, "no tests in the column `tests`"),
        ({"tests": []}, LookupError, "no tests"),
        ({"tests": [3]}, TypeError, "must be Python code, or a mapping"),
    ],
)
async def test_a_prompt_without_tests_is_no_failed_code(
    columns: dict[str, Any], error: type[Exception], named: str
) -> None:
    with pytest.raises(error, match=named):
        await CodeTests()(episode(ADDS), **columns)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("a\n```py\n1\n```\nb\n```\n2\n```", "2\n"),
        ("```python\ncut off", "cut off"),
        ("plain", "plain"),
        ("```python\n1\n```\n```bash\nls\n```", "1\n"),
    ],
)
def test_code_is_the_last_block_of_python(text: str, code: str) -> None:
    assert extract_code(text) == code
