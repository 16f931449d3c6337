"""Rules of evaluations: there is something to evaluate on, and what is asked can be estimated."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from colocate.config import DataConfig
from colocate.preflight.callables import NotFoundError, load, refusal
from colocate.preflight.table import rule
from colocate.problems import Problem


@rule("eval.every_steps", "data")
def _there_are_prompts_to_evaluate_on(
    every_steps: int, tree: Mapping[str, Any]
) -> Iterator[Problem]:
    data = DataConfig.model_validate(tree)
    if not every_steps or data.has_evaluation:
        return
    if data.source is not None:
        remedy = (
            "give the arguments of data.source that make other prompts, as "
            "data.eval_options={seed: 1000000007}, or set eval.every_steps=0"
        )
    else:
        remedy = "give data.eval_split=SPLIT or data.eval_fraction=0.05, or set eval.every_steps=0"
    yield Problem(
        field="eval.every_steps",
        value=every_steps,
        rule="must be 0 where the data set has no prompts to evaluate on",
        remedy=remedy,
    )


@rule("data.source", "data.options", "data.eval_options")
def _the_source_takes_the_evaluations_options(
    path: str | None, options: Mapping[str, Any], eval_options: Mapping[str, Any] | None
) -> Iterator[Problem]:
    if path is None or eval_options is None:
        return
    try:
        target = load(path)
    except NotFoundError:
        return  # reported by the rule of data.source
    reason = refusal(target, {**options, **eval_options})
    if reason is not None and refusal(target, options) is None:
        yield Problem(
            field="data.eval_options",
            value=dict(eval_options),
            rule=f"must be arguments that {path} accepts: {reason}",
            remedy="name only arguments that data.options may have, too",
        )


@rule("eval.every_steps", "eval.num_prompts", "data.source")
def _a_stream_has_no_end(
    every_steps: int, num_prompts: int | None, source: str | None
) -> Iterator[Problem]:
    if every_steps and source is not None and num_prompts is None:
        yield Problem(
            field="eval.num_prompts",
            value=None,
            rule="must be given with data.source, whose prompts have no end",
            remedy="set eval.num_prompts=64, say",
        )


@rule("eval.k", "eval.samples_per_prompt")
def _k_samples_are_drawn(k: int | None, samples_per_prompt: int) -> Iterator[Problem]:
    if k is not None and k > samples_per_prompt:
        yield Problem(
            field="eval.k",
            value=k,
            rule=f"must be at most eval.samples_per_prompt = {samples_per_prompt}: of so many "
            "samples nothing can be said about more",
            remedy=f"set eval.samples_per_prompt={k} or more",
        )


@rule("eval.temperature", "eval.samples_per_prompt")
def _samples_differ(temperature: float, samples_per_prompt: int) -> Iterator[Problem]:
    if temperature == 0 and samples_per_prompt > 1:
        yield Problem(
            field="eval.samples_per_prompt",
            value=samples_per_prompt,
            rule="must be 1 with eval.temperature=0, since greedy samples are all the same",
            remedy="set eval.temperature=1.0, or eval.samples_per_prompt=1",
        )


@rule("eval.max_new_tokens", "inference.max_model_len")
def _a_turn_fits_the_context(max_new_tokens: int | None, max_model_len: int) -> Iterator[Problem]:
    if max_new_tokens is not None and max_new_tokens >= max_model_len:
        yield Problem(
            field="eval.max_new_tokens",
            value=max_new_tokens,
            rule=f"must be below inference.max_model_len = {max_model_len}, which holds the "
            "prompt too",
            remedy=f"set eval.max_new_tokens={max_model_len // 2}",
        )
