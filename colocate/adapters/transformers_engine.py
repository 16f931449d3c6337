"""One request at a time with transformers alone: light to start, for trying a model out.

Not for training: it knows neither parks nor new weights, and batches nothing.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colocate.core.types import FinishReason, Span, Version
from colocate.ports import Generation, GenerationRequest

if TYPE_CHECKING:
    from torch import Tensor

Decode = Callable[[Sequence[int]], str]
OnTokens = Callable[[Sequence[int]], None]
"""Told of new tokens as they are sampled, from another thread."""


class TransformersEngine:
    """A model's folder behind ``generate`` of the ``Inference`` port.

    Args:
        folder: Of the model.
        version: That its tokens are said to be of.
        device: torch's name of where it computes.
        decode: Of the model's tokenizer; for stop strings.
        on_tokens: Told of each token as it comes.
    """

    def __init__(
        self,
        folder: Path,
        *,
        version: Version,
        device: str,
        decode: Decode,
        on_tokens: OnTokens | None = None,
    ) -> None:
        self._folder = folder
        self._version = version
        self._device = device
        self._decode = decode
        self._on_tokens = on_tokens
        self._model: Any = None

    async def start(self) -> None:
        """Loads the weights, in the type that they are stored in."""
        self._model = await asyncio.to_thread(self._load)

    async def generate(self, request: GenerationRequest) -> Generation:
        """Runs one request to its end; cancelled, it ends with the token that is being sampled."""
        sampling = _Sampling(request, self._decode, self._on_tokens)
        try:
            await asyncio.to_thread(self._generate, request, sampling)
        finally:
            sampling.cancelled.set()
        return Generation(
            request_id=request.request_id,
            token_ids=sampling.token_ids,
            logprobs=sampling.logprobs,
            spans=(Span(version=self._version, length=len(sampling.token_ids)),),
            finish_reason=FinishReason.STOP if sampling.is_complete else FinishReason.LENGTH,
        )

    async def close(self) -> None:
        self._model = None

    def _load(self) -> Any:
        from transformers import AutoModelForCausalLM, GenerationConfig

        model = AutoModelForCausalLM.from_pretrained(self._folder, dtype="auto")
        # As the run's engine samples, whatever the model's folder says of its own preferences.
        model.generation_config = GenerationConfig()
        return model.to(self._device).eval()

    def _generate(self, request: GenerationRequest, sampling: _Sampling) -> None:
        import torch
        from transformers import GenerationConfig, LogitsProcessorList, StoppingCriteriaList

        prompt = torch.tensor([list(request.prompt_token_ids)], device=self._device)
        draws = request.temperature > 0
        # From the whole distribution, as the run's engine samples.
        settings = GenerationConfig(
            max_new_tokens=request.max_new_tokens,
            do_sample=draws,
            temperature=request.temperature if draws else None,
            top_k=0 if draws else None,
            top_p=1.0 if draws else None,
            pad_token_id=0,
        )
        torch.manual_seed(request.seed)
        with torch.inference_mode():
            self._model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                generation_config=settings,
                logits_processor=LogitsProcessorList([sampling.see_logits]),
                stopping_criteria=StoppingCriteriaList([sampling.see_token]),
            )


class _Sampling:
    """Looks on while transformers samples, keeps what came of it, and says when it is over."""

    def __init__(
        self, request: GenerationRequest, decode: Decode, on_tokens: OnTokens | None
    ) -> None:
        self._request = request
        self._decode = decode
        self._on_tokens = on_tokens
        self._logits: Tensor | None = None
        self.cancelled = threading.Event()
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []

    @property
    def is_complete(self) -> bool:
        """Whether its last token is one that ends it."""
        request, token_ids = self._request, self.token_ids
        if token_ids and token_ids[-1] in request.stop_token_ids:
            return True
        if not request.stop:
            return False
        text = self._decode(token_ids)
        return any(stop in text for stop in request.stop)

    def see_logits(self, sequences: Tensor, logits: Tensor) -> Tensor:
        """Before transformers applies the temperature: that is what it does with such as we are."""
        self._logits = logits
        return logits

    def see_token(self, sequences: Tensor, scores: Any, **_: Any) -> Tensor:
        """After each token. Of a greedy one the distribution is that without a temperature."""
        assert self._logits is not None
        token = int(sequences[0, -1])
        scaled = self._logits[0].float() / (self._request.temperature or 1.0)
        self.token_ids.append(token)
        self.logprobs.append(float(scaled.log_softmax(-1)[token]))
        if self._on_tokens is not None:
            self._on_tokens([token])
        over = self.cancelled.is_set() or self.is_complete
        return sequences.new_full((1,), over).bool()
