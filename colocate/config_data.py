"""The typed configuration of what a run learns from: prompts, and rewards."""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import Field

from colocate.config_types import ImportPath, PositiveFloat, PositiveInt, Section

_WORD_BEGINS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


class DataConfig(Section):
    source: ImportPath | None = Field(
        None,
        description="`package.module:name` of a callable that makes the prompt source; null: the "
        "data set `path`.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, description="Keyword arguments of `source`."
    )
    path: str | None = Field(
        None,
        description="Data set: a file (.json, .jsonl, .csv, .tsv, .parquet, also compressed), "
        "several as a glob, a folder of them or one that `save_to_disk` wrote, or a name on the "
        "Hugging Face hub. See rewards-and-data.md.",
    )
    subset: str | None = Field(None, description="Of a data set that has several.")
    revision: str | None = Field(None, description="Branch, tag or commit on the hub.")
    split: str = Field("train", description="As `train` or `train[:80%]`; files are `train`.")
    prompt_column: str = Field(
        "prompt",
        description="A text, or a list of messages (`role`, `content`) that ends with the user's.",
    )
    columns: dict[str, str] = Field(
        default_factory=dict,
        description="What environments and rewards see, as `{answer: solution}`: by its name, a "
        "column. Empty: every column, by its own name.",
    )
    max_prompt_tokens: PositiveInt | None = Field(
        None,
        description="Longer prompts are left out and counted; null: those that leave no room for a "
        "turn within `inference.max_model_len`.",
    )
    shuffle: bool = Field(True, description="Each epoch in an order of its own, from `seed`.")
    streaming: bool = Field(
        False, description="Read while the run goes on, and never held or counted as a whole."
    )
    shuffle_buffer: PositiveInt = Field(
        10_000, description="`streaming`: rows among which the next one is drawn."
    )
    eval_split: str | None = Field(None, description="Split to evaluate on; null: none.")
    eval_fraction: Annotated[float, Field(ge=0, lt=1)] = Field(
        0.0,
        description="Share of the rows that is held out to evaluate on, whatever the `seed`.",
    )

    @property
    def splits(self) -> tuple[str, ...]:
        """All that are read."""
        return (self.split,) if self.eval_split is None else (self.split, self.eval_split)


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
