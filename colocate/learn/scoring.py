"""Log-probabilities of given tokens under a causal language model."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from colocate.learn.batches import MicroBatch

MAX_CHUNK_ELEMENTS = 2**26
"""Logits turned to float32 at a time: 256 MiB."""


class TokenScorer(nn.Module):
    """A causal language model that scores the tokens of a micro-batch.

    Only the positions whose next token is wanted go through the output head: a hook narrows its
    input, so that whatever the architecture does to logits afterwards still happens, and logits
    of prompts, observations and padding are never made.

    Args:
        model: A Hugging Face causal language model.
        temperature: Logits are divided by it, as the engine did before it sampled.
        packed: The model computes ``packed_attention``, and so can score packed micro-batches.
    """

    def __init__(self, model: nn.Module, *, temperature: float, packed: bool = False) -> None:
        super().__init__()
        self.model = model
        self.packed = packed
        self._temperature = temperature
        self._wanted: tuple[Tensor, Tensor] | None = None
        head = model.get_output_embeddings()  # type: ignore[operator]
        head.register_forward_pre_hook(self._narrow)

    def _narrow(self, head: nn.Module, inputs: tuple[Any, ...]) -> tuple[Tensor]:
        assert self._wanted is not None
        (hidden,) = inputs
        return (hidden[self._wanted].unsqueeze(0),)

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
        self._wanted = (batch.batch_index, batch.positions)
        try:
            output = self.model(
                input_ids=batch.token_ids,
                position_ids=batch.position_ids,
                use_cache=False,
                **({} if batch.runs is None else {"packed_runs": batch.runs}),
            )
        finally:
            self._wanted = None
        return token_logprobs(
            output.logits[0],
            batch.targets,
            temperature=self._temperature if temperature is None else temperature,
            with_entropy=with_entropy,
            entropy_grad=entropy_grad,
        )


def token_logprobs(
    logits: Tensor,
    targets: Tensor,
    *,
    temperature: float,
    with_entropy: bool,
    entropy_grad: bool = False,
    max_chunk_elements: int = MAX_CHUNK_ELEMENTS,
) -> tuple[Tensor, Tensor | None]:
    """Log-probabilities (N,) of ``targets`` (N,) under ``softmax(logits / temperature)``.

    Computed in float32 whatever the type of ``logits`` (N, V). Of large inputs only a chunk is
    held in float32 at a time; the backward pass computes it again.
    """
    rows_per_chunk = max(1, max_chunk_elements // logits.shape[-1])

    def score(chunk: Tensor, chunk_targets: Tensor) -> tuple[Tensor, Tensor | None]:
        logprobs = torch.log_softmax(chunk.float() / temperature, dim=-1)
        chosen = logprobs.gather(-1, chunk_targets.unsqueeze(-1)).squeeze(-1)
        if not with_entropy:
            return chosen, None
        with torch.set_grad_enabled(entropy_grad and torch.is_grad_enabled()):
            return chosen, -(logprobs.exp() * logprobs).sum(dim=-1)

    if len(logits) <= rows_per_chunk:
        return score(logits, targets)
    parts = [
        checkpoint(score, chunk, chunk_targets, use_reentrant=False)
        for chunk, chunk_targets in zip(
            torch.split(logits, rows_per_chunk), torch.split(targets, rows_per_chunk), strict=True
        )
    ]
    chosen = torch.cat([part[0] for part in parts])
    return chosen, torch.cat([part[1] for part in parts]) if with_entropy else None
