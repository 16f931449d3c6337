"""What must hold of a data set before a run starts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from colocate.config import DataConfig
from colocate.data.load import load_split
from colocate.data.order import hold_out
from colocate.data.prompts import CountTokens, all_prompts
from colocate.data.rows import RowReader, UnfitRowError
from colocate.problems import ConfigurationError, Problem, nearest


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What a run needs of its data set.

    Attributes:
        num_rows: ``algorithm.groups_per_step``: a batch must not hold one prompt twice.
        max_model_len: ``inference.max_model_len``.
        max_prompt_tokens: ``data.max_prompt_tokens``.
    """

    num_rows: int
    max_model_len: int
    max_prompt_tokens: int | None

    @property
    def limit(self) -> int:
        """Tokens of the longest prompt that leaves room for a turn."""
        return min(self.max_prompt_tokens or self.max_model_len, self.max_model_len - 1)


def column_names(config: DataConfig) -> list[str] | None:
    """Of the prompts that a configuration makes; None where a stream does not tell.

    Raises:
        ConfigurationError: as ``load_split``.
    """
    names: list[str] | None = load_split(config, config.split).column_names
    return names if names is None or not config.columns else list(config.columns)


def check_data(config: DataConfig, needs: Needs, count: CountTokens | None) -> list[Problem]:
    """All that is wrong with every split, as far as it can be known without the model's template.

    Args:
        count: Tokens of a prompt, or fewer; None where they cannot be known yet.
    """
    problems: list[Problem] = []
    for split in config.splits:
        try:
            rows = load_split(config, split)
        except ConfigurationError as error:
            problems += error.problems
            continue
        found = list(check_columns(config, rows))
        problems += found or _check_rows(config, split, rows, needs, count)
    return problems


def check_columns(config: DataConfig, rows: Any) -> Iterator[Problem]:
    """Every column that is named must be there."""
    known = rows.column_names
    if known is None:  # a stream that does not tell before it is read
        return
    named = [("data.prompt_column", config.prompt_column)]
    named += [(f"data.columns.{name}", column) for name, column in config.columns.items()]
    for field, column in named:
        if column not in known:
            guess = nearest(column, known)
            yield Problem(
                field=field,
                value=column,
                rule=f"must be a column of the data set, which has: {', '.join(known) or 'none'}",
                remedy=f"did you mean {field}={guess}?" if guess else f"set {field} to one of them",
            )


def check_row(config: DataConfig, error: UnfitRowError) -> Problem:
    """The problem of a row that makes no prompt."""
    return Problem(
        field="data.prompt_column",
        value=config.prompt_column,
        rule=f"must hold a prompt in every row: a text, or messages; {error}",
        remedy="mend or remove these rows, or name another column",
    )


def too_few(
    config: DataConfig, needs: Needs, *, num_rows: int, num_fitting: int, shortest: int | None
) -> Problem | None:
    """The problem of a data set that does not fill a batch; None where it does.

    Args:
        num_rows: To train on, of any length.
        num_fitting: Those whose prompt is short enough.
        shortest: Tokens of the shortest prompt that is not, if any is not.
    """
    if num_rows < needs.num_rows:
        held_out = f" beside data.eval_fraction={config.eval_fraction:g}"
        return Problem(
            field="data.path",
            value=config.path,
            rule=f"must hold at least algorithm.groups_per_step = {needs.num_rows} rows to train "
            f"on{held_out if config.eval_fraction else ''}, or a batch would hold one prompt "
            f"twice; it has {num_rows}",
            remedy=f"set algorithm.groups_per_step={num_rows} or less, or use more rows"
            if num_rows
            else "use a data set with rows",
        )
    if num_fitting >= needs.num_rows:
        return None
    own = needs.max_prompt_tokens is not None and needs.max_prompt_tokens < needs.max_model_len
    field = "data.max_prompt_tokens" if own else "inference.max_model_len"
    fit = f"only {num_fitting} of {num_rows} prompts do" if num_fitting else "no prompt does"
    return Problem(
        field=field,
        value=needs.max_prompt_tokens if own else needs.max_model_len,
        rule=f"must let at least algorithm.groups_per_step = {needs.num_rows} prompts fit in "
        f"{needs.limit} tokens; {fit}, and the shortest of the others has {shortest}",
        remedy=f"raise {field}, use shorter prompts, or lower algorithm.groups_per_step",
    )


def _check_rows(
    config: DataConfig, split: str, rows: Any, needs: Needs, count: CountTokens | None
) -> list[Problem]:
    reader = RowReader.of(config)
    try:
        if config.streaming:
            return _check_first(rows, reader, config)
        if split != config.split:
            num_rows = sum(1 for _ in all_prompts(rows, reader))
            return [] if num_rows else [_no_rows(config)]
        return _check_training_rows(config, rows, reader, needs, count)
    except UnfitRowError as error:
        return [check_row(config, error)]


def _check_first(rows: Any, reader: RowReader, config: DataConfig) -> list[Problem]:
    """Of a stream more is only seen while the run goes on."""
    try:
        first = next(iter(rows), None)
    except Exception as error:  # what a stream raises comes from files, network and parsers
        return [
            Problem(
                field="data.path",
                value=config.path,
                rule=f"must be a data set that can be read; {type(error).__name__}: {error}",
                remedy="check the file or the name",
            )
        ]
    if first is None:
        return [_no_rows(config)]
    try:
        reader.prompt(first)
    except UnfitRowError as error:
        raise UnfitRowError(f"row 0 {error}") from error
    return []


def _check_training_rows(
    config: DataConfig, rows: Any, reader: RowReader, needs: Needs, count: CountTokens | None
) -> list[Problem]:
    held_out = frozenset(hold_out(len(rows), config.eval_fraction)[1].tolist())
    num_rows = num_fitting = 0
    shortest: int | None = None
    for number, prompt in all_prompts(rows, reader):
        if number in held_out:
            continue
        num_rows += 1
        if num_fitting < needs.num_rows:
            num_tokens = 0 if count is None else count(prompt)
            if num_tokens <= needs.limit:
                num_fitting += 1
            else:
                shortest = min(shortest or num_tokens, num_tokens)
    problem = too_few(config, needs, num_rows=num_rows, num_fitting=num_fitting, shortest=shortest)
    if problem is None and config.eval_fraction and not held_out:
        problem = Problem(
            field="data.eval_fraction",
            value=config.eval_fraction,
            rule=f"must hold out at least one of {len(rows)} rows",
            remedy="set a larger share, or 0",
        )
    return [] if problem is None else [problem]


def _no_rows(config: DataConfig) -> Problem:
    return Problem(
        field="data.path",
        value=config.path,
        rule="must hold rows; it has none",
        remedy="use a data set with rows",
    )


def texts(prompt: Any) -> Sequence[str]:
    """What a prompt says, message by message."""
    return [*(message["content"] for message in prompt.history), prompt.text]
