"""What counts as a call of a tool, and what as an answer."""

from __future__ import annotations

import pytest

from colocate.environments.answers import given_answer, is_same
from colocate.environments.calls import (
    Call,
    Grammar,
    Malformed,
    Tool,
    check_grammar,
    find_call,
    instructions,
)

PYTHON = Tool(name="python", argument="code", languages=("python", "py", ""))


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        ("I run it.\n```python\nprint(1)\n```\nNow I wait.", "print(1)\n"),
        ("```py\na = 1\n\nprint(a)\n```", "a = 1\n\nprint(a)\n"),
        ("```\nprint(1)\n```\n```python\nprint(2)\n```", "print(1)\n"),
        ("```json\n{}\n```\n  ``` python\nprint(2)\n  ```", "print(2)\n"),
        ("```PYTHON\nprint('```')\n```", "print('```')\n"),
        ("The answer is `print(1)`.", None),
        ("```json\n{}\n```", None),
        ("", None),
    ],
)
def test_a_fenced_call_is_the_first_block_in_the_tools_language(
    turn: str, expected: str | None
) -> None:
    call = find_call(turn, PYTHON, "fenced")
    assert call == (None if expected is None else Call(expected))


@pytest.mark.parametrize(
    ("turn", "expected"),
    [
        (
            'So:\n<tool_call>\n{"name": "python", "arguments": {"code": "print(1)\\n"}}\n'
            "</tool_call>",
            "print(1)\n",
        ),
        ("```python\nprint(1)\n```", None),
        ("Answer: 3", None),
    ],
)
def test_a_json_call_is_what_hermes_and_qwen_write(turn: str, expected: str | None) -> None:
    call = find_call(turn, PYTHON, "json")
    assert call == (None if expected is None else Call(expected))


@pytest.mark.parametrize(
    ("grammar", "turn", "reason"),
    [
        ("fenced", "```python\nprint(1)", "close it with ```"),
        ("fenced", "```python\n\n```", "is empty"),
        ("json", '<tool_call>{"name": "python"', "close it with </tool_call>"),
        ("json", "<tool_call>print(1)</tool_call>", "no JSON"),
        ("json", "<tool_call>[1]</tool_call>", "no tool None"),
        ("json", '<tool_call>{"name": "bash", "arguments": {}}</tool_call>', "no tool 'bash'"),
        ("json", '<tool_call>{"name": "python", "arguments": "x"}</tool_call>', 'a text "code"'),
        (
            "json",
            '<tool_call>{"name": "python", "arguments": {"code": 1}}</tool_call>',
            'a text "code"',
        ),
    ],
)
def test_what_looks_like_a_call_and_is_none_is_explained(
    grammar: Grammar, turn: str, reason: str
) -> None:
    call = find_call(turn, PYTHON, grammar)
    assert isinstance(call, Malformed)
    assert reason in call.reason


@pytest.mark.parametrize("grammar", ["fenced", "json"])
def test_the_instructions_show_a_call_that_is_one(grammar: Grammar) -> None:
    shown = instructions(PYTHON, grammar, 'print("a\\n")')
    call = find_call(shown, PYTHON, grammar)
    assert isinstance(call, Call)
    assert call.text.strip() == 'print("a\\n")'


def test_an_unknown_grammar_is_refused() -> None:
    with pytest.raises(ValueError, match="must be one of fenced, json"):
        check_grammar("xml")


@pytest.mark.parametrize(
    ("turn", "answer"),
    [
        ("Answer: 42", "42"),
        ("Answer: 1\nNo.\n**Answer:** 42 ", "42"),
        ("answer : a b", "a b"),
        ("The answer: 42", None),
        ("Answer:", None),
        ("", None),
    ],
)
def test_the_last_line_that_begins_with_answer_counts(turn: str, answer: str | None) -> None:
    assert given_answer(turn) == answer


@pytest.mark.parametrize(
    ("given", "wanted", "same"),
    [
        ("42", "42", True),
        ("1,234.0", "1234", True),
        ("42", "43", False),
        ("`Lemon.txt`", "lemon.txt", True),
        ('"lemon".', "lemon", True),
        ("lemon maple", "lemon", False),
        ("nan", "nan", False),
    ],
)
def test_answers_are_compared_as_numbers_or_as_text(given: str, wanted: str, same: bool) -> None:
    assert is_same(given, wanted) is same
