"""From the configuration to the prompts of a run."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from colocate.config import DataConfig
from colocate.data.check import Needs, check_columns, check_row, too_few
from colocate.data.load import load_split
from colocate.data.order import hold_out
from colocate.data.prompts import CountTokens, DataSetPrompts, Prompts, fitting
from colocate.data.rows import RowReader, UnfitRowError
from colocate.data.stream import StreamedPrompts
from colocate.ports import Prompt, PromptSource
from colocate.problems import ConfigurationError

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunData:
    """What a run trains on, and what it may be evaluated on.

    Attributes:
        prompts: The stream to train on.
        evaluation: Held out; None where nothing is.
        facts: Counts of rows, for people; lengths in tokens.
    """

    prompts: PromptSource
    evaluation: Sequence[Prompt] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


def make_data(config: DataConfig, *, needs: Needs, seed: int, count: CountTokens) -> RunData:
    """Reads the data set, leaves out prompts that are too long, and says how many.

    Args:
        config: Of a data set (``path``).
        needs: Of the run.
        seed: Of the order.
        count: Tokens of a prompt, exactly, as the model will see it.

    Raises:
        ConfigurationError: the data set cannot be used.
    """
    rows = load_split(config, config.split)
    if problems := list(check_columns(config, rows)):
        raise ConfigurationError(problems)
    reader = RowReader.of(config)
    if config.streaming:
        stream = StreamedPrompts(
            rows,
            reader,
            lambda prompt: count(prompt) <= needs.limit,
            seed=seed,
            buffer=config.shuffle_buffer if config.shuffle else None,
        )
        evaluation, num_left_out = _evaluation(config, reader, needs, count)
        facts: dict[str, Any] = {"streaming": True}
        if evaluation is not None:
            facts |= {"evaluation_rows": len(evaluation), "evaluation_too_long": num_left_out}
        return RunData(prompts=stream, evaluation=evaluation, facts=facts)
    kept, too_long = _fitting(config, rows, reader, needs, count)
    train, held_out = hold_out(len(rows), config.eval_fraction)
    train_kept = np.intersect1d(train, kept)
    problem = too_few(
        config,
        needs,
        num_rows=len(train),
        num_fitting=len(train_kept),
        shortest=min(too_long, default=None),
    )
    if problem is not None:
        raise ConfigurationError([problem])
    facts = {
        "rows": len(train),
        "too_long": len(train) - len(train_kept),
        "max_prompt_tokens": needs.limit,
        "longest_left_out": max(too_long, default=None),
    }
    if config.eval_fraction:
        held_out_kept = np.intersect1d(held_out, kept)
        evaluation = Prompts(rows, held_out_kept.tolist(), reader)
        num_left_out = len(held_out) - len(held_out_kept)
    else:
        evaluation, num_left_out = _evaluation(config, reader, needs, count)
    if evaluation is not None:
        facts |= {"evaluation_rows": len(evaluation), "evaluation_too_long": num_left_out}
    if facts["too_long"]:
        logger.warning(
            "%d of %d prompts have more than %d tokens (the longest %d) and are left out",
            *(facts["too_long"], len(train), needs.limit, max(too_long)),
        )
    prompts = Prompts(rows, train_kept.tolist(), reader)
    return RunData(
        prompts=DataSetPrompts(prompts, seed=seed, shuffle=config.shuffle),
        evaluation=evaluation,
        facts=facts,
    )


def _evaluation(
    config: DataConfig, reader: RowReader, needs: Needs, count: CountTokens
) -> tuple[Prompts | None, int]:
    """The prompts of a split of their own, held as a whole, and how many are left out."""
    if config.eval_split is None:
        return None, 0
    # An evaluation covers all of its rows each time; only training reads on and on.
    rows = load_split(config.model_copy(update={"streaming": False}), config.eval_split)
    kept, too_long = _fitting(config, rows, reader, needs, count)
    return Prompts(rows, kept, reader), len(too_long)


def _fitting(
    config: DataConfig, rows: Any, reader: RowReader, needs: Needs, count: CountTokens
) -> tuple[list[int], list[int]]:
    try:
        return fitting(rows, reader, count, needs.limit)
    except UnfitRowError as error:
        raise ConfigurationError([check_row(config, error)]) from error
