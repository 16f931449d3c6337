"""What one request returns: exactly the tokens that were sampled, and their probabilities."""

from __future__ import annotations

import asyncio

import pytest
from vllm_support import make_request, max_difference, reference_logprobs

from colocate.core.types import FinishReason

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="session")]

PROMPT = [index % 17 for index in range(20)]


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
async def test_logprobs_are_of_the_distribution_sampled_from(engine, tied_models, temperature):
    result = await engine.generate(
        make_request("probe", PROMPT, max_new_tokens=40, temperature=temperature)
    )
    expected = reference_logprobs(
        tied_models.first, PROMPT, result.token_ids, temperature=temperature
    )
    assert max_difference(result.logprobs, expected) < 1e-3


async def test_a_seed_decides_the_tokens_whatever_else_runs(engine):
    def requests(tag: str) -> list:
        return [
            make_request(f"{tag}-{seed}", PROMPT, max_new_tokens=30, seed=seed) for seed in range(8)
        ]

    together = await asyncio.gather(*(engine.generate(request) for request in requests("all")))
    alone = [await engine.generate(request) for request in requests("one")]
    assert [result.token_ids for result in together] == [result.token_ids for result in alone]
    assert len({tuple(result.token_ids) for result in alone}) == len(alone)


async def test_a_stop_token_ends_the_generation_and_is_kept(engine):
    free = await engine.generate(make_request("free", PROMPT, max_new_tokens=40))
    stop_token = free.token_ids[20]
    first = list(free.token_ids).index(stop_token)
    result = await engine.generate(
        make_request("stopped", PROMPT, max_new_tokens=40, stop_token_ids=(stop_token,))
    )
    assert list(result.token_ids) == list(free.token_ids)[: first + 1]
    assert result.finish_reason is FinishReason.STOP


async def test_a_stop_string_ends_the_generation_after_the_token_that_completes_it(
    engine, tied_models
):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tied_models.first)
    free = await engine.generate(make_request("free", PROMPT, max_new_tokens=40))
    stop = tokenizer.decode(free.token_ids[18:21])
    assert len(stop) == 3
    end = tokenizer.decode(free.token_ids).index(stop) + 3
    result = await engine.generate(
        make_request("stopped", PROMPT, max_new_tokens=40, stop=("no such text", stop))
    )
    assert list(result.token_ids) == list(free.token_ids)[:end]
    assert len(result.logprobs) == end
    assert result.finish_reason is FinishReason.STOP


async def test_the_models_own_end_of_text_does_not_end_a_generation_by_itself(engine, tied_models):
    from transformers import AutoTokenizer

    end_of_text = AutoTokenizer.from_pretrained(tied_models.first).eos_token_id
    results = await asyncio.gather(
        *(
            engine.generate(make_request(f"long-{seed}", PROMPT, max_new_tokens=100, seed=seed))
            for seed in range(8)
        )
    )
    assert {result.finish_reason for result in results} == {FinishReason.LENGTH}
    assert any(end_of_text in list(result.token_ids)[:-1] for result in results)


async def test_a_prompt_that_is_too_long_fails_alone(engine):
    good = asyncio.create_task(engine.generate(make_request("good", PROMPT)))
    with pytest.raises(ValueError, match="1 to 511 tokens"):
        await engine.generate(make_request("long", [1] * 600))
    assert len((await good).token_ids) == 8
    await engine.park()
    await engine.resume()
