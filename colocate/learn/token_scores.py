"""From logits to what is wanted of them: log-probabilities of given tokens, and entropies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is wanted of logits at N positions.

    Attributes:
        targets: Int64 (N,), the tokens to score.
        temperature: Logits are divided by it.
        with_entropy: Also the entropy of each distribution.
        entropy_grad: It bears a gradient.
    """

    targets: Tensor
    temperature: float
    with_entropy: bool
    entropy_grad: bool = False

    def split(self, rows: int) -> Iterator[Wanted]:
        """The same of so many positions at a time."""
        for targets in torch.split(self.targets, rows):
            yield Wanted(
                targets=targets,
                temperature=self.temperature,
                with_entropy=self.with_entropy,
                entropy_grad=self.entropy_grad,
            )


class TokenScores(NamedTuple):
    """Float32, in nats, each (N,); the entropy is None where it is not wanted."""

    logprobs: Tensor
    entropy: Tensor | None


def score_logits(logits: Tensor, wanted: Wanted) -> TokenScores:
    """Scores under ``softmax(logits / temperature)`` of logits (N, V), computed in float32."""
    logprobs = torch.log_softmax(logits.float() / wanted.temperature, dim=-1)
    chosen = logprobs.gather(-1, wanted.targets.unsqueeze(-1)).squeeze(-1)
    if not wanted.with_entropy:
        return TokenScores(chosen, None)
    with torch.set_grad_enabled(wanted.entropy_grad and torch.is_grad_enabled()):
        return TokenScores(chosen, -(logprobs.exp() * logprobs).sum(dim=-1))


def score_logits_in_chunks(logits: Tensor, wanted: Wanted, *, max_elements: int) -> TokenScores:
    """As ``score_logits``, with at most so many of the logits in float32 at a time."""
    rows = max(1, max_elements // logits.shape[-1])
    if len(logits) <= rows:
        return score_logits(logits, wanted)
    parts = [
        checkpoint(score_logits, chunk, of_chunk, use_reentrant=False)
        for chunk, of_chunk in zip(torch.split(logits, rows), wanted.split(rows), strict=True)
    ]
    entropies = [part.entropy for part in parts if part.entropy is not None]
    return TokenScores(
        torch.cat([part.logprobs for part in parts]), torch.cat(entropies) if entropies else None
    )
