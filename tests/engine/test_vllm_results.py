"""A result that cannot be vouched for is an error; nothing is filled in. No engine needed."""

from __future__ import annotations

import math

import pytest
from vllm.logprobs import FlatLogprobs
from vllm.outputs import CompletionOutput, RequestOutput, WeightVersionSpan

from colocate.adapters.vllm.sampling import generation


def finished(
    *,
    token_ids=(3, 4),
    logprobs=(-0.5, -1.5),
    versions=(("2", 0, 2),),
    finish_reason="length",
) -> RequestOutput:
    flat = None
    if logprobs is not None:
        flat = FlatLogprobs()
        for token_id, logprob in zip(token_ids, logprobs, strict=False):
            flat.append_fast([token_id], [logprob], iter([1]), [None])
    spans = None
    if versions is not None:
        spans = [WeightVersionSpan(version, start, end) for version, start, end in versions]
    completion = CompletionOutput(
        index=0,
        text="",
        token_ids=list(token_ids),
        cumulative_logprob=None,
        logprobs=flat,
        finish_reason=finish_reason,
        weight_versions=spans,
    )
    return RequestOutput(
        request_id="r",
        prompt=None,
        prompt_token_ids=[1],
        prompt_logprobs=None,
        outputs=[completion],
        finished=True,
    )


def test_tokens_logprobs_and_versions_are_taken_as_they_are():
    result = generation("r", finished(versions=(("1", 0, 1), ("2", 1, 2))))
    assert list(result.token_ids) == [3, 4]
    assert list(result.logprobs) == [-0.5, -1.5]
    assert [(span.version, span.length) for span in result.spans] == [(1, 1), (2, 1)]


def test_an_abort_before_the_first_token_is_empty():
    result = generation(
        "r", finished(token_ids=(), logprobs=(), versions=(), finish_reason="abort")
    )
    assert (list(result.token_ids), list(result.logprobs), result.spans) == ([], [], ())


@pytest.mark.parametrize(
    "fault",
    [
        {"logprobs": None},
        {"logprobs": (-0.5,)},
        {"logprobs": (-0.5, math.nan)},
        {"logprobs": (-0.5, -math.inf)},
        {"versions": None},
        {"versions": (("2", 0, 1),)},
        {"finish_reason": "error"},
        {"finish_reason": None},
    ],
)
def test_a_damaged_result_is_refused(fault):
    with pytest.raises(RuntimeError, match="request r"):
        generation("r", finished(**fault))
