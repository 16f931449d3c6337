"""What the engine's weights say of given prompts."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_numbers = itertools.count()


async def score_prompts(engine: AsyncLLM, prompts: Sequence[Sequence[int]]) -> list[list[float]]:
    """For each prompt, the log-probabilities of its tokens but the first, at temperature 1.

    vLLM's ``prompt_logprobs`` are of raw logits whatever the ``logprobs_mode``: prompts do not go
    through the sampler. A request for them does not read the prefix cache, of which there are no
    logits; what it writes there is what any request with that prompt would.

    Raises:
        RuntimeError: a result that is not of these tokens.
    """
    return list(await asyncio.gather(*(_score(engine, prompt) for prompt in prompts)))


async def _score(engine: AsyncLLM, prompt: Sequence[int]) -> list[float]:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    token_ids = list(prompt)
    # It must generate one token, which nobody reads.
    params = SamplingParams(
        max_tokens=1,
        ignore_eos=True,
        detokenize=False,
        prompt_logprobs=0,
        output_kind=RequestOutputKind.FINAL_ONLY,
    )
    name = f"score-{next(_numbers)}"
    scores = None
    async for output in engine.generate(
        {"type": "token", "prompt_token_ids": token_ids}, params, name
    ):
        scores = output.prompt_logprobs
    # Of the first token there is none.
    if scores is None or len(scores) != len(token_ids):
        raise RuntimeError(
            f"{name}: the engine must score {len(token_ids)} tokens, but scored "
            f"{0 if scores is None else len(scores)}"
        )
    return [
        float(at_position[token_id].logprob)
        for at_position, token_id in zip(scores[1:], token_ids[1:], strict=True)
    ]
