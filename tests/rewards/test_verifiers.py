"""The verifiers: what counts as right."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.rewards.matching import (
    ExactMatch,
    FormatMatch,
    NumericMatch,
    environment,
    last_number,
)
from tests.rewards.episodes import episode

TAGGED = "<answer>(.*?)</answer>"


@pytest.mark.parametrize(
    ("options", "right", "text", "value"),
    [
        ({}, "Paris", " Paris\n", 1),
        ({}, "Paris", "paris", 0),
        ({}, "Paris", "It is Paris", 0),
        ({}, 42, "42", 1),
        ({}, ["a", "b"], "b", 1),
        ({"ignore_case": True}, "Straße", "STRASSE", 1),
        ({"ignore_punctuation": True}, "New York", "New,  York!", 1),
        ({"ignore_punctuation": True}, "New York", "NewYork", 0),
        ({"pattern": TAGGED}, "7", "5? <answer>5</answer> no:\n<answer>\n7 </answer>", 1),
        ({"pattern": TAGGED}, "7", "7", 0),
        ({"pattern": r"\d+"}, "7", "5 or 7", 1),
    ],
)
def test_exact_match(options: dict[str, Any], right: Any, text: str, value: float) -> None:
    assert ExactMatch(**options)(episode(text), answer=right) == value


def test_a_prompt_without_the_right_answer_is_no_wrong_answer() -> None:
    with pytest.raises(LookupError, match="no right answer in the column `label`"):
        ExactMatch(column="label")(episode("a"), answer="a")
    with pytest.raises(LookupError, match="no right answer"):
        ExactMatch()(episode("a"), answer=None)


@pytest.mark.parametrize(
    ("options", "right", "text", "value"),
    [
        ({}, 1234.5, "so it is 1,234.50.", 1),
        ({}, "42", "42 apples", 1),
        ({}, "#### 42", "first 41, then 42", 1),
        ({}, "42", "42, not 41", 0),
        ({}, "0.75", "3/4", 1),
        ({}, 0.45, "45%", 1),
        ({}, -2e-3, "-2e-3", 1),
        ({}, 5, "none", 0),
        ({}, 5, "1e999999999", 0),
        ({}, 5, "5/0", 0),
        ({"relative": 0.1}, 100, "109", 1),
        ({"relative": 0.1}, 100, "111", 0),
        ({"absolute": 0.5, "relative": 0.0}, 0, "0.5", 1),
        ({"absolute": 0.5, "relative": 0.0}, 0, "0.51", 0),
        ({"pattern": TAGGED}, 7, "<answer>7</answer> or 8", 1),
    ],
)
def test_numeric_match(options: dict[str, Any], right: Any, text: str, value: float) -> None:
    assert NumericMatch(**options)(episode(text), answer=right) == value


def test_a_right_answer_that_is_no_number_is_no_wrong_answer() -> None:
    with pytest.raises(ValueError, match="holds no number"):
        NumericMatch()(episode("3"), answer="three")


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_every_finite_float_is_read_back_exactly(number: float) -> None:
    assert last_number(f"about {number!r}") == Fraction(repr(number))


@given(st.text())
def test_no_text_breaks_the_reading_of_numbers(text: str) -> None:
    found = last_number(text)
    assert found is None or isinstance(found, Fraction)


@pytest.mark.parametrize(
    ("options", "turns", "value"),
    [
        ({"pattern": "<think>.*</think>.+"}, ("<think>\na\n</think>\nb",), 1),
        ({"pattern": "<think>.*</think>.+"}, ("a <think>a</think>b",), 0),
        ({"pattern": "[ab]"}, ("x", "env", "a"), 1),
        ({"pattern": "[ab]", "every_turn": True}, ("x", "env", "a"), 0),
        ({"pattern": "[ab]", "every_turn": True}, ("b", "env", "a"), 1),
    ],
)
def test_format_match(options: dict[str, Any], turns: tuple[str, ...], value: float) -> None:
    assert FormatMatch(**options)(episode(*turns)) == value


async def test_the_environments_reward_can_be_one_part() -> None:
    assert await environment(episode("a", reward=0.3)) == 0.3


class TestMathematics:
    @pytest.mark.parametrize(
        ("right", "text", "value"),
        [
            (r"\frac{1}{2}", r"so \boxed{0.5}", 1),
            ("1/2", r"The answer is $\frac12$", 1),
            ("x^2+1", "$1+x^2$", 1),
            ("x^2+1", "$1$", 0),
            (r"\sqrt{2}", "$2^{1/2}$", 1),
            (r"$\{1, 2\}$", r"\boxed{\{2, 1\}}", 1),
            ("42", "It is 42", 1),
            ("42", "It is 43", 0),
            (["41", "43"], "It is 43", 1),
            (r"\frac{1}{2}", "no idea", 0),
        ],
    )
    def test_equal_is_what_is_equal(self, right: Any, text: str, value: float) -> None:
        from colocate.rewards.mathematics import MathMatch

        assert MathMatch()(episode(text), answer=right) == value

    def test_a_right_answer_that_cannot_be_read_is_no_wrong_answer(self) -> None:
        from colocate.rewards.mathematics import MathMatch

        with pytest.raises(ValueError, match="no mathematics that can be read"):
            MathMatch()(episode("$1$"), answer=" ")
