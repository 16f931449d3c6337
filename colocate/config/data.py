"""Prompts: which a run learns from, and which it is evaluated on."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from colocate.config.types import ImportPath, PositiveInt, Section


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

    eval_options: dict[str, Any] | None = Field(
        None,
        description="Keyword arguments of `source` in place of some of `options`, with which it "
        "makes the prompts to evaluate on, as `{seed: 1000000007}`; null: none.",
    )

    @property
    def has_evaluation(self) -> bool:
        """Whether there are prompts to evaluate on."""
        if self.source is not None:
            return self.eval_options is not None
        return self.eval_split is not None or self.eval_fraction > 0

    @property
    def splits(self) -> tuple[str, ...]:
        """All that are read."""
        return (self.split,) if self.eval_split is None else (self.split, self.eval_split)
