"""Rules of the data set: it can be read, holds prompts, and enough of them are short enough."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from colocate.config import DataConfig, RewardConfig
from colocate.data.check import Needs, check_data, column_names, texts
from colocate.ports import MESSAGES, Prompt
from colocate.preflight.callables import NotFoundError, load
from colocate.preflight.table import rule
from colocate.problems import Problem
from colocate.rewards.functions import shape_of
from colocate.rewards.trl import TRL_OWN

_OF_A_SOURCE = frozenset({"source", "options", "eval_options"})
_VERIFIERS = "colocate.rewards."


@rule("data")
def _prompts_have_one_source(tree: Mapping[str, Any]) -> Iterator[Problem]:
    config = DataConfig.model_validate(tree)
    if (config.source is None) == (config.path is None):
        state = "neither is" if config.source is None else "both are"
        yield Problem(
            field="data.path",
            value=config.path,
            rule=f"exactly one of data.path and data.source must be given; {state}",
            remedy="choose data=files or data=hub and name the data set, or data=custom and name "
            "a prompt source",
        )
        return
    unread = config.model_fields_set - _OF_A_SOURCE if config.source else _OF_A_SOURCE - {"source"}
    for name in sorted(unread):
        value, field = getattr(config, name), DataConfig.model_fields[name]
        if value != field.get_default(call_default_factory=True):
            yield Problem(
                field=f"data.{name}",
                value=value,
                rule=f"has no meaning {'with' if config.source else 'without'} data.source",
                remedy=f"leave data.{name} out",
            )
    if config.eval_split is not None and config.eval_fraction:
        yield Problem(
            field="data.eval_fraction",
            value=config.eval_fraction,
            rule=f"must be 0 with data.eval_split={config.eval_split}",
            remedy="choose one of the two",
        )
    if config.streaming and config.eval_fraction:
        yield Problem(
            field="data.eval_fraction",
            value=config.eval_fraction,
            rule="must be 0 with data.streaming=true, where the number of rows is not known",
            remedy="name a split with data.eval_split, or set data.streaming=false",
        )
    if config.eval_split == config.split:
        yield Problem(
            field="data.eval_split",
            value=config.eval_split,
            rule="must not be data.split, which is trained on",
            remedy="name another split, or parts of it: data.split='train[:90%]' "
            "data.eval_split='train[90%:]'",
        )
    if config.streaming and "[" in config.split:
        yield Problem(
            field="data.split",
            value=config.split,
            rule="must be a whole split with data.streaming=true",
            remedy="leave the brackets out, or set data.streaming=false",
        )


@rule(
    "data",
    "algorithm.groups_per_step",
    "inference.max_model_len",
    "model.path",
    "model.embedded",
    "reward",
)
def _data_set_can_be_used(
    tree: Mapping[str, Any],
    groups_per_step: int,
    max_model_len: int,
    model: str | None,
    embedded: Mapping[str, Any] | None,
    reward: Mapping[str, Any],
) -> Iterator[Problem]:
    config = DataConfig.model_validate(tree)
    if config.path is None or list(_prompts_have_one_source(tree)):
        return
    needs = Needs(
        num_rows=groups_per_step,
        max_model_len=max_model_len,
        max_prompt_tokens=config.max_prompt_tokens,
    )
    found = check_data(config, needs, _counter(model, embedded is not None))
    yield from found
    if not found:
        yield from _reward_columns_are_there(config, RewardConfig.model_validate(reward))


def _counter(model: str | None, embedded: bool) -> Callable[[Prompt], int] | None:
    """Tokens of a prompt's texts, without what a template adds; None where no tokenizer is here.

    What it calls too long is; the rest is looked at again when the run has its tokenizer.
    """
    if embedded:
        from colocate.embedded.model import character_tokenizer

        tokenizer = character_tokenizer()
    else:
        file = Path(model or "").expanduser() / "tokenizer.json"
        if model is None or not file.is_file():
            return None
        from tokenizers import Tokenizer

        try:
            tokenizer = Tokenizer.from_file(str(file))
        except Exception:  # loading the model will say what is wrong with it
            return None
    return lambda prompt: sum(
        len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts(prompt)
    )


def _reward_columns_are_there(config: DataConfig, reward: RewardConfig) -> Iterator[Problem]:
    """A function that names a column which no row has would fail every trajectory."""
    known = column_names(config)
    if known is None:
        return
    for number, term in enumerate(reward.terms):
        try:
            target = load(term.function)
        except NotFoundError:
            continue  # reported by the rule of rewards
        shape = shape_of(target)
        own = TRL_OWN if shape.is_trl else frozenset()
        needed = shape.required - term.options.keys() - own
        if term.function.startswith(_VERIFIERS) and (
            column := _column_option(target, term.options)
        ):
            needed |= {column}
        for name in sorted(needed - {*known, MESSAGES}):
            of_functions = number - (reward.function is not None)
            yield Problem(
                field="reward.function" if of_functions < 0 else f"reward.functions.{of_functions}",
                value=term.function,
                rule=f"needs the column `{name}`; prompts have: {', '.join(known)}",
                remedy=f"name the data set's column for it, as data.columns={{{name}: COLUMN}}",
            )


def _column_option(target: Any, options: Mapping[str, Any]) -> str | None:
    parameter = inspect.signature(target).parameters.get("column")
    if parameter is None:
        return None
    return str(options.get("column", parameter.default))
