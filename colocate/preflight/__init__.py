"""Rules that relate several fields to each other, or a field to this machine.

Each rule is a small function that names the fields it reads and is handed exactly their values; a
rule is skipped where one of its fields already has a fault of its own. All rules are tried, and
what they find is reported together, before anything starts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from colocate.config import RunConfig
from colocate.preflight import (
    callables,
    chat,
    data,
    deepspeed,
    engine_args,
    evaluation,
    files,
    flat_groups,
    learning,
    logger,
    lora,
    machine,
    memory,
    mismatch,
    rewards,
    simulation,
    supervision,
    trainer,
)
from colocate.preflight.table import RULES, Rule
from colocate.problems import ConfigurationError, Problem
from colocate.schema import REQUIRED, examine

__all__ = [
    "RULES",
    "SIMULATION_RULES",
    "Rule",
    "callables",
    "chat",
    "data",
    "deepspeed",
    "engine_args",
    "evaluation",
    "find_problems",
    "flat_groups",
    "learning",
    "logger",
    "lora",
    "machine",
    "memory",
    "mismatch",
    "rewards",
    "simulation",
    "supervision",
    "trainer",
    "validate",
]

_TO_SIMULATE = frozenset({learning.__name__, simulation.__name__})
_TO_SIMULATE_TOO = frozenset({"a_slow_step_is_not_idleness"})

SIMULATION_RULES: Sequence[Rule] = tuple(
    rule for rule in RULES if rule.check.__module__ in _TO_SIMULATE or rule.name in _TO_SIMULATE_TOO
)
"""Those that hold without engines, models and this machine's devices."""


def find_problems(
    tree: Mapping[str, Any],
    *,
    run_dir: Path | None = None,
    complete: bool = True,
    rules: Sequence[Rule] = RULES,
) -> tuple[RunConfig | None, list[Problem]]:
    """Validates a plain tree; the configuration is None where there are problems.

    Args:
        tree: As Hydra composed it; ``"???"`` marks a missing value.
        run_dir: Where the run is to write; None leaves the rules on it out.
        complete: False where a choice that could not be composed may be why values are missing;
            they are then not reported.
        rules: Those to try.
    """
    examination = examine(tree)
    problems = [each for each in examination.problems if complete or each.rule != REQUIRED]
    for item in rules:
        if all(field in examination.values for field in item.fields):
            problems += item.check(*(examination.values[field] for field in item.fields))
    if run_dir is not None:
        problems += files.check_run_dir(run_dir, examination.values.get("resume"))
    return (None if problems or not complete else examination.config), problems


def validate(
    tree: Mapping[str, Any], *, run_dir: Path | None = None, rules: Sequence[Rule] = RULES
) -> RunConfig:
    """The typed configuration of a plain tree.

    Raises:
        ConfigurationError: with everything that is wrong.
    """
    config, problems = find_problems(tree, run_dir=run_dir, rules=rules)
    if config is None:
        raise ConfigurationError(problems)
    return config
