"""What a trajectory is worth: a sum of weighted functions, or what its environment says."""

from __future__ import annotations

import re
from typing import Any

from pydantic import Field

from colocate.config.types import ImportPath, PositiveFloat, PositiveInt, Section

_WORD_BEGINS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class RewardTerm(Section):
    """One function of a reward that is a weighted sum."""

    function: ImportPath = Field(description="`package.module:name` of a function or a class.")
    weight: float = Field(1.0, description="Of what it returns, in the sum.")
    options: dict[str, Any] = Field(default_factory=dict, description="Its keyword arguments.")
    name: str | None = Field(
        None,
        pattern=r"^\w+$",
        description="Under which its mean is among the metrics; null: the function's.",
    )

    @property
    def label(self) -> str:
        """In the metrics' way of writing: ``ExactMatch`` becomes ``exact_match``."""
        if self.name is not None:
            return self.name
        return _WORD_BEGINS.sub("_", self.function.rpartition(":")[2]).lower()


class RewardConfig(Section):
    function: ImportPath | None = Field(
        None,
        description="`package.module:name` of a function of the finished trajectory, or of a class "
        "of them; null, with no `functions` either: the sum of the environment's rewards. See "
        "rewards-and-data.md.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of `function`."
    )
    functions: tuple[RewardTerm, ...] = Field(
        (),
        strict=False,
        description="Several instead, which are added up: each a mapping of `function`, `weight` "
        "(1), `options` ({}) and `name` (the function's).",
    )
    timeout_s: PositiveFloat | None = Field(
        None,
        description="Deadline of one function on one trajectory; null: "
        "`environment.step_timeout_s`, which bounds all of them together.",
    )
    num_workers: PositiveInt = Field(
        2,
        description="Processes, at most, for functions that are not `async`. One that misses its "
        "deadline is killed.",
    )

    @property
    def terms(self) -> tuple[RewardTerm, ...]:
        """All functions; empty where the environment alone rewards."""
        if self.function is None:
            return self.functions
        return (RewardTerm(function=self.function, options=self.options), *self.functions)
