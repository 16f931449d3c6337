"""A small valid tree, and what preflight says of it once some of its values are changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colocate.preflight import find_problems
from colocate.problems import Problem

SMALL: dict[str, Any] = {
    "steps": 1,
    "device": "cpu",
    "model": {"embedded": {}},
    "data": {"source": "colocate.embedded.digits:DigitPrompts"},
    "inference": {"kv_cache_memory_bytes": 1000, "max_model_len": 64},
    "rollout": {"max_new_tokens": 3},
    "trainer": {},
    "algorithm": {"group_size": 4, "groups_per_step": 4},
    "scheduler": {},
    "buffer": {},
    "environment": {"factory": "colocate.embedded.digits:DigitSearch"},
    "reward": {},
    "memory": {},
    "checkpoint": {},
    "supervision": {},
    "logger": {},
}


def with_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """``SMALL`` with some fields changed, by path."""
    tree = {key: dict(value) if isinstance(value, dict) else value for key, value in SMALL.items()}
    for path, value in values.items():
        *sections, name = path.split(".")
        node = tree
        for section in sections:
            node = node[section]
        node[name] = value
    return tree


def problems_of(values: Mapping[str, Any]) -> list[Problem]:
    return find_problems(with_values(values))[1]


def problem_of(values: Mapping[str, Any]) -> Problem:
    """The only one."""
    [problem] = problems_of(values)
    return problem


def fields_of(values: Mapping[str, Any]) -> set[str]:
    return {problem.field for problem in problems_of(values)}
