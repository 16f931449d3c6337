"""What is said of evaluations that cannot be, or would say nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.config.trees import problem_of, problems_of

ROWS = str(Path(__file__).parents[1] / "data" / "rows" / "train.jsonl")
SOURCE = "colocate.embedded.digits:DigitPrompts"
HELD_OUT = {"data": {"source": SOURCE, "eval_options": {}}}

WRONG: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "a source without other prompts": (
        {"eval": {"every_steps": 5}},
        "eval.every_steps",
        "must be 0 where the data set has no prompts to evaluate on",
        "data.eval_options=",
    ),
    "a data set without a split": (
        {"eval": {"every_steps": 5}, "data": {"path": ROWS}},
        "eval.every_steps",
        "no prompts to evaluate on",
        "data.eval_split=SPLIT",
    ),
    "arguments that the source does not take": (
        {"data": {"source": SOURCE, "eval_options": {"seed": 1}}},
        "data.eval_options",
        "must be arguments that",
        "data.options",
    ),
    "all prompts of a stream": (
        {**HELD_OUT, "eval": {"every_steps": 5, "num_prompts": None}},
        "eval.num_prompts",
        "whose prompts have no end",
        "eval.num_prompts=64",
    ),
    "more than are drawn": (
        {"eval": {"k": 4, "samples_per_prompt": 2, "temperature": 1.0}},
        "eval.k",
        "at most eval.samples_per_prompt = 2",
        "eval.samples_per_prompt=4",
    ),
    "several greedy samples": (
        {"eval": {"samples_per_prompt": 2}},
        "eval.samples_per_prompt",
        "greedy samples are all the same",
        "eval.temperature=1.0",
    ),
    "a turn as long as the context": (
        {"eval": {"max_new_tokens": 64}},
        "eval.max_new_tokens",
        "below inference.max_model_len = 64",
        "eval.max_new_tokens=32",
    ),
    "options of a data set in files": (
        {"data": {"path": ROWS, "eval_options": {"seed": 1}}},
        "data.eval_options",
        "no meaning without data.source",
        "leave data.eval_options out",
    ),
}


@pytest.mark.parametrize(("values", "field", "rule", "remedy"), WRONG.values(), ids=WRONG.keys())
def test_an_evaluation_that_cannot_be_is_refused(
    values: dict[str, Any], field: str, rule: str, remedy: str
) -> None:
    problem = problem_of(values)

    assert problem.field == field
    assert rule in problem.rule
    assert remedy in problem.remedy


@pytest.mark.parametrize(
    "values",
    [
        {**HELD_OUT, "eval": {"every_steps": 5}},
        {"eval": {"every_steps": 5}, "data": {"path": ROWS, "eval_fraction": 0.2}},
        {**HELD_OUT, "eval": {"every_steps": 1, "samples_per_prompt": 8, "temperature": 0.7}},
    ],
)
def test_evaluations_that_can_be_are_let_through(values: dict[str, Any]) -> None:
    assert problems_of(values) == []
