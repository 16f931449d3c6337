"""The light engine samples as the port says: log-probabilities, stop tokens and strings, ends."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from colocate.adapters.tokenizer import HuggingFaceTokenizer
from colocate.adapters.transformers_engine import TransformersEngine
from colocate.config import EmbeddedModelConfig
from colocate.core.types import FinishReason, Span, Version
from colocate.embedded.model import build_embedded_model
from colocate.ports import Generation, GenerationRequest


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("model")
    return build_embedded_model(
        place, EmbeddedModelConfig(), seed=3, dtype="float32", max_model_len=64
    )


@pytest.fixture(scope="module")
def tokenizer(folder: Path) -> HuggingFaceTokenizer:
    return HuggingFaceTokenizer(str(folder))


def generate(folder: Path, tokenizer: HuggingFaceTokenizer, **changes: Any) -> Generation:
    given = {
        "request_id": "r",
        "prompt_token_ids": tokenizer.encode("0-9?\n"),
        "max_new_tokens": 12,
        "seed": 7,
        "temperature": 0.7,
    }

    async def run() -> Generation:
        engine = TransformersEngine(
            folder, version=Version(4), device="cpu", decode=tokenizer.decode
        )
        await engine.start()
        try:
            return await engine.generate(GenerationRequest(**{**given, **changes}))
        finally:
            await engine.close()

    return asyncio.run(run())


def test_log_probabilities_are_of_the_distribution_that_was_sampled_from(
    folder: Path, tokenizer: HuggingFaceTokenizer
) -> None:
    made = generate(folder, tokenizer)
    prompt = tokenizer.encode("0-9?\n")
    with torch.inference_mode():
        whole = torch.tensor([[*prompt, *made.token_ids]])
        logits = AutoModelForCausalLM.from_pretrained(folder)(whole).logits[0]
    written = (logits[len(prompt) - 1 : -1].double() / 0.7).log_softmax(-1)
    expected = [float(row[token]) for row, token in zip(written, made.token_ids, strict=True)]
    assert made.logprobs == pytest.approx(expected, abs=1e-4)
    assert made.finish_reason is FinishReason.LENGTH
    assert made.spans == (Span(version=Version(4), length=12),)


def test_one_seed_gives_one_answer_and_another_another(
    folder: Path, tokenizer: HuggingFaceTokenizer
) -> None:
    first, again, other = (generate(folder, tokenizer, seed=seed) for seed in (7, 7, 8))
    assert first.token_ids == again.token_ids != other.token_ids


def test_a_stop_token_is_kept_and_ends_the_answer(
    folder: Path, tokenizer: HuggingFaceTokenizer
) -> None:
    whole = generate(folder, tokenizer)
    token = whole.token_ids[4]
    stopped = generate(folder, tokenizer, stop_token_ids=(token,))
    end = list(whole.token_ids).index(token) + 1
    assert list(stopped.token_ids) == list(whole.token_ids)[:end]
    assert stopped.finish_reason is FinishReason.STOP


def test_a_stop_string_ends_the_answer_with_the_token_that_completes_it(
    folder: Path, tokenizer: HuggingFaceTokenizer
) -> None:
    whole = generate(folder, tokenizer)
    string = tokenizer.decode(whole.token_ids[3:5])
    stopped = generate(folder, tokenizer, stop=(string,))
    text = tokenizer.decode(stopped.token_ids)
    assert text.endswith(string)
    assert text.count(string) == 1
    assert tokenizer.decode(whole.token_ids).startswith(text)
    assert stopped.finish_reason is FinishReason.STOP
