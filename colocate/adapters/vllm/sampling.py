"""Requests and results, from our terms into vLLM's and back."""

from __future__ import annotations

import math

from vllm import SamplingParams
from vllm.logprobs import FlatLogprobs
from vllm.outputs import RequestOutput
from vllm.sampling_params import RequestOutputKind

from colocate.core.types import FinishReason, Span, Version, merge_spans
from colocate.ports import Generation, GenerationRequest


def sampling_params(request: GenerationRequest) -> SamplingParams:
    """vLLM's parameters for a request.

    The model's own end-of-sequence tokens do not end it: ``stop_token_ids`` says what does. Text
    is decoded only where there are stop strings, special tokens spelt out. Only the sampled
    token's log-probability is asked for, in flat lists, and only with the last message.
    """
    return SamplingParams(
        temperature=request.temperature,
        seed=request.seed,
        max_tokens=request.max_new_tokens,
        stop=list(request.stop) or None,
        stop_token_ids=list(request.stop_token_ids) or None,
        ignore_eos=True,
        include_stop_str_in_output=True,
        detokenize=bool(request.stop),
        skip_special_tokens=False,
        logprobs=0,
        flat_logprobs=True,
        output_kind=RequestOutputKind.FINAL_ONLY,
        skip_clone=True,
    )


def generation(request_id: str, output: RequestOutput) -> Generation:
    """The result of a finished request.

    Raises:
        RuntimeError: tokens without exactly one finite log-probability and one version each, or
            a request that the engine ended as an error. Nothing is ever filled in.
    """
    completion = output.outputs[0]
    if completion.finish_reason not in ("stop", "length", "abort"):
        raise RuntimeError(f"request {request_id}: the engine ended it as an error")
    token_ids = list(completion.token_ids)
    spans = merge_spans(
        Span(version=Version(int(span.version)), length=span.end - span.start)
        for span in completion.weight_versions or ()
    )
    if sum(span.length for span in spans) != len(token_ids):
        raise RuntimeError(
            f"request {request_id}: weight versions {completion.weight_versions} must cover its "
            f"{len(token_ids)} tokens"
        )
    return Generation(
        request_id=request_id,
        token_ids=token_ids,
        logprobs=_sampled_logprobs(request_id, token_ids, completion.logprobs),
        spans=spans,
        finish_reason=FinishReason(completion.finish_reason),
        num_cached_tokens=output.num_cached_tokens or 0,
    )


def _sampled_logprobs(
    request_id: str, token_ids: list[int], logprobs: FlatLogprobs | None
) -> list[float]:
    if not token_ids:
        return []
    if logprobs is None or list(logprobs.token_ids) != token_ids:
        returned = None if logprobs is None else list(logprobs.token_ids)
        raise RuntimeError(
            f"request {request_id}: log-probabilities must be of the sampled tokens {token_ids}, "
            f"but are of {returned}"
        )
    values = list(logprobs.logprobs)
    if not all(map(math.isfinite, values)):
        raise RuntimeError(
            f"request {request_id}: log-probabilities must be finite, are {values}; the engine's "
            "weights are damaged"
        )
    return values
