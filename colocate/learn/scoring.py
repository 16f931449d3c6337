"""Log-probabilities of given tokens under a causal language model."""

from __future__ import annotations

from typing import Any, Protocol

import torch.nn.functional as F
from torch import Tensor, nn

from colocate.learn.batches import MicroBatch
from colocate.learn.chunked_head import (
    head_scores,
    in_float32,
    returns_what_its_head_makes,
)
from colocate.learn.token_scores import Wanted, score_logits_in_chunks

MAX_CHUNK_ELEMENTS = 2**25
"""Logits at a time: 128 MiB in float32, a few times over while they are worked on."""


class Scorer(Protocol):
    """Whatever scores the tokens of a micro-batch, as ``TokenScorer.forward`` does."""

    def __call__(
        self, batch: MicroBatch, *, with_entropy: bool
    ) -> tuple[Tensor, Tensor | None]: ...


class TokenScorer(nn.Module):
    """A causal language model that scores the tokens of a micro-batch.

    Only the positions whose next token is wanted go through the output head: a hook narrows its
    input, and logits of prompts, observations and padding are never made. Where the model does
    nothing to logits after its head, the head itself returns scores in their place, chunk by chunk.
    Where it does, all logits of the wanted positions are made, in the model's type.

    Args:
        model: A Hugging Face causal language model, on its device.
        temperature: Logits are divided by it, as the engine did before it sampled.
        packed: The model computes ``packed_attention``, and so can score packed micro-batches.
        fp32_head: The output head computes in float32 from weights of any type, as the engine's
            does with ``inference.fp32_head``. Weights stay what they are.

    Raises:
        TypeError: ``fp32_head`` of a model whose output head is no plain linear layer.

    Attributes:
        chunks_head: Whether logits are made a chunk at a time.
        max_chunk_elements: Of such a chunk.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float,
        packed: bool = False,
        fp32_head: bool = False,
    ) -> None:
        super().__init__()
        self.model = model
        self.packed = packed
        self.max_chunk_elements = MAX_CHUNK_ELEMENTS
        self._temperature = temperature
        self._places: tuple[Tensor, Tensor] | None = None
        self._wanted: Wanted | None = None
        head = model.get_output_embeddings()  # type: ignore[operator]
        self.chunks_head = type(head) is nn.Linear and returns_what_its_head_makes(model, head)
        head.register_forward_pre_hook(self._narrow)
        if fp32_head and type(head) is not nn.Linear:
            raise TypeError(
                f"inference.fp32_head needs an output head that is a plain linear layer, but the "
                f"model's is {type(head).__name__}; set inference.fp32_head=false"
            )
        if self.chunks_head:

            def forward(hidden: Tensor) -> Tensor:
                assert self._wanted is not None
                scores = head_scores(
                    head,
                    hidden[0],
                    self._wanted,
                    max_elements=self.max_chunk_elements,
                    fp32=fp32_head,
                )
                return scores.unsqueeze(0)

            head.forward = forward
        elif fp32_head:
            head.forward = lambda hidden: F.linear(*in_float32(head, hidden))

    def _narrow(self, head: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        assert self._places is not None
        (hidden,) = inputs
        return (hidden[self._places].unsqueeze(0),)

    def forward(
        self,
        batch: MicroBatch,
        *,
        with_entropy: bool,
        entropy_grad: bool = False,
        temperature: float | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Float32 log-probability of each wanted token, and the entropy of its distribution.

        Both are (N,), in nats. The entropy is None unless asked for, and outside of the graph
        unless ``entropy_grad``. ``temperature`` stands for the scorer's own in this call.
        """
        if batch.runs is not None and not self.packed:
            raise ValueError("a packed micro-batch came to a model that reads padded ones only")
        wanted = Wanted(
            targets=batch.targets,
            temperature=self._temperature if temperature is None else temperature,
            with_entropy=with_entropy,
            entropy_grad=entropy_grad,
        )
        self._places, self._wanted = (batch.batch_index, batch.positions), wanted
        try:
            output = self.model(
                input_ids=batch.token_ids,
                position_ids=batch.position_ids,
                use_cache=False,
                **({} if batch.runs is None else {"packed_runs": batch.runs}),
            ).logits[0]
        finally:
            self._places = self._wanted = None
        if not self.chunks_head:
            return score_logits_in_chunks(output, wanted, max_elements=self.max_chunk_elements)
        logprobs, *entropy = output.unbind(dim=-1)
        return logprobs, self._entropy(entropy, entropy_grad)

    @staticmethod
    def _entropy(found: list[Tensor], with_gradient: bool) -> Tensor | None:
        if not found:
            return None
        return found[0] if with_gradient else found[0].detach()
