"""What is said of rewards that cannot be called, before anything starts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.config.trees import problem_of, problems_of

HERE = "tests.rewards.episodes"
JUDGE = "colocate.rewards.judge:LlmJudge"

WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "not there": ({"function": f"{HERE}:no"}, "reward.function", "has no `no`"),
    "not callable": ({"function": f"{HERE}:not_callable"}, "reward.function", "cannot be called"),
    "class without a call": ({"function": f"{HERE}:NoCall"}, "reward.function", "no __call__"),
    "no trajectory": (
        {"function": f"{HERE}:takes_nothing"},
        "reward.function",
        "must take the trajectory",
    ),
    "option of a function": (
        {"function": f"{HERE}:matches", "options": {"bonuss": 1}},
        "reward.options",
        "unexpected keyword argument 'bonuss'",
    ),
    "option of a class": (
        {"function": f"{HERE}:Counts", "options": {"stop": 1}},
        "reward.options",
        "unexpected keyword argument 'stop'",
    ),
    "options without a function": (
        {"options": {"a": 1}},
        "reward.options",
        "no meaning without reward.function",
    ),
    "second of several": (
        {"functions": [{"function": f"{HERE}:length"}, {"function": "no_such_module:f"}]},
        "reward.functions.1.function",
        "No module named 'no_such_module'",
    ),
    "several without a function": ({"functions": [{"weight": 1.0}]}, "functions.0.function", "req"),
    "weight that is no number": (
        {"functions": [{"function": f"{HERE}:length", "weight": "much"}]},
        "reward.functions.0.weight",
        "number",
    ),
    "weight that is not finite": (
        {"functions": [{"function": f"{HERE}:length", "weight": float("inf")}]},
        "reward.functions.0.weight",
        "finite",
    ),
    "unknown key": (
        {"functions": [{"function": f"{HERE}:length", "wieght": 1.0}]},
        "reward.functions.0.wieght",
        "no such key",
    ),
    "two of one name": (
        {"function": f"{HERE}:length", "functions": [{"function": f"{HERE}:length"}]},
        "reward.functions",
        "two functions must not have one name",
    ),
    "pattern that is none": (
        {"function": "colocate.rewards.matching:FormatMatch", "options": {"pattern": "("}},
        "reward.options",
        "unterminated subpattern",
    ),
    "key that is not set": (
        {
            "function": JUDGE,
            "options": {"base_url": "http://x/v1", "model": "m", "api_key_variable": "NO_KEY"},
        },
        "reward.options",
        "NO_KEY is not set",
    ),
    "deadline above the step's": (
        {"function": f"{HERE}:length", "timeout_s": 301.0},
        "reward.timeout_s",
        "at most environment.step_timeout_s = 300",
    ),
}


@pytest.mark.parametrize(("reward", "field", "rule"), WRONG.values(), ids=WRONG.keys())
def test_a_reward_that_cannot_be_called_is_refused(
    reward: dict[str, Any], field: str, rule: str
) -> None:
    problem = problem_of({"reward": reward})

    assert problem.field.endswith(field)
    assert rule in problem.rule
    assert problem.remedy


@pytest.mark.parametrize("name", ["length", "matches", "Counts", "trl_length", "trl_answer"])
def test_every_kind_of_function_is_taken(name: str) -> None:
    assert problems_of({"reward": {"function": f"{HERE}:{name}"}}) == []
