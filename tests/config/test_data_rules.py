"""What is said of data that contradicts itself or the rest of the configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from colocate.problems import Problem
from tests.config.trees import problems_of

ROWS = str(Path(__file__).parents[1] / "data" / "rows" / "train.jsonl")
HERE = "tests.rewards.episodes"
SOURCE = "colocate.embedded.digits:DigitPrompts"

WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "neither": ({}, "data.path", "neither is"),
    "both": ({"source": SOURCE, "path": ROWS}, "data.path", "both are"),
    "a data set's key": (
        {"source": SOURCE, "prompt_column": "text"},
        "data.prompt_column",
        "no meaning with data.source",
    ),
    "a source's options": (
        {"path": ROWS, "options": {"a": 1}},
        "data.options",
        "no meaning without data.source",
    ),
    "held out twice": (
        {"path": ROWS, "eval_split": "train[:5]", "split": "train[5:]", "eval_fraction": 0.1},
        "data.eval_fraction",
        "must be 0 with data.eval_split",
    ),
    "a share of a stream": (
        {"path": ROWS, "streaming": True, "eval_fraction": 0.1},
        "data.eval_fraction",
        "must be 0 with data.streaming=true",
    ),
    "a slice of a stream": (
        {"path": ROWS, "streaming": True, "split": "train[:5]"},
        "data.split",
        "must be a whole split",
    ),
    "evaluated on what is trained on": (
        {"path": ROWS, "eval_split": "train"},
        "data.eval_split",
        "must not be data.split",
    ),
    "all held out": ({"path": ROWS, "eval_fraction": 1.0}, "data.eval_fraction", "less than 1"),
}


def only(values: Mapping[str, Any]) -> Problem:
    [problem] = problems_of(values)
    return problem


@pytest.mark.parametrize(("data", "field", "rule"), WRONG.values(), ids=WRONG.keys())
def test_data_that_contradicts_itself_is_refused(
    data: dict[str, Any], field: str, rule: str
) -> None:
    problem = only({"data": data})

    assert problem.field == field
    assert rule in problem.rule


def test_a_data_set_goes_with_what_it_needs() -> None:
    assert problems_of({"data": {"path": ROWS}}) == []


def test_prompts_are_counted_with_the_models_tokenizer(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"prompt": "1" * 64}) + "\n" for _ in range(8)))

    problem = only({"data": {"path": str(rows)}})

    assert problem.field == "inference.max_model_len"
    assert "the shortest of the others has 64" in problem.rule


@pytest.mark.parametrize(
    ("reward", "field", "column"),
    [
        ({"function": f"{HERE}:hangs_if_asked"}, "reward.function", "wait"),
        (
            {"functions": [{"function": f"{HERE}:everything"}, {"function": f"{HERE}:trl_answer"}]},
            None,
            "",
        ),
        (
            {"function": "colocate.rewards.code_tests:CodeTests"},
            "reward.function",
            "tests",
        ),
        (
            {
                "functions": [
                    {
                        "function": "colocate.rewards.matching:ExactMatch",
                        "options": {"column": "label"},
                    }
                ]
            },
            "reward.functions.0",
            "label",
        ),
    ],
)
def test_a_reward_that_needs_a_column_which_no_prompt_has_is_refused(
    reward: dict[str, Any], field: str | None, column: str
) -> None:
    found = problems_of({"data": {"path": ROWS}, "reward": reward})

    assert [problem.field for problem in found] == ([] if field is None else [field])
    for problem in found:
        assert f"needs the column `{column}`; prompts have: prompt, answer" in problem.rule
