"""An output head that gives scores of tokens, and never all of their logits.

Logits of a micro-batch are the largest tensor of training by far: tokens x vocabulary, with a
gradient of the same size. Here a chunk of positions at a time goes through the head, the softmax
and the choice of the wanted token; the backward pass makes each chunk anew.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from colocate.learn.token_scores import TokenScores, Wanted, score_logits

_FORWARD_INPUTS = 5
"""Arguments of ``_ChunkedScores.forward``, each of which has a gradient or None."""


def head_scores(head: nn.Linear, hidden: Tensor, wanted: Wanted, *, max_elements: int) -> Tensor:
    """Float32 scores (N, 1), log-probabilities; (N, 2), with entropies, where these are wanted.

    To be called within the head's own forward pass, where ZeRO 3 has its weight gathered.

    Args:
        hidden: (N, H), what the head reads at the wanted positions.
        max_elements: Of logits at a time, at most, unless a single position has more.
    """
    if len(hidden) <= max(1, max_elements // head.out_features):
        scores = score_logits(F.linear(hidden, head.weight, head.bias), wanted)
    else:
        apply: Any = _ChunkedScores.apply
        scores = TokenScores(*apply(hidden, head.weight, head.bias, wanted, max_elements))
    return torch.stack([each for each in scores if each is not None], dim=-1)


@torch.no_grad()
def returns_what_its_head_makes(model: nn.Module, head: nn.Module) -> bool:
    """Whether a model hands the output of its head on as it is.

    Some scale or cap logits afterwards, which scores in the logits' place would not survive. It is
    found out by trying: the very tensor must come back, with the values that it had.
    """
    made: list[tuple[int, Tensor]] = []
    hook = head.register_forward_hook(
        lambda module, inputs, output: made.append((output.data_ptr(), output.clone()))
    )
    device = next(head.parameters()).device
    try:
        tokens = torch.zeros((1, 2), dtype=torch.int64, device=device)
        logits = model(input_ids=tokens, use_cache=False).logits
    finally:
        hook.remove()
    if len(made) != 1:
        return False
    address, values = made[0]
    return bool(logits.data_ptr() == address) and torch.equal(logits, values)


class _ChunkedScores(torch.autograd.Function):
    """One node of the graph, so that a weight's gradient is complete when it is first seen.

    ZeRO 1 and 2 reduce a gradient as soon as it is there; a graph of its own for each chunk would
    hand it to them in parts. Gradients of the weight add up in the weight's own type.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        wanted: Wanted,
        max_elements: int,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.save_for_backward(hidden, weight, bias)
        ctx.wanted = wanted
        ctx.rows = max(1, max_elements // weight.shape[0])
        parts = [
            score_logits(F.linear(chunk, weight, bias), of_chunk)
            for chunk, of_chunk in zip(hidden.split(ctx.rows), wanted.split(ctx.rows), strict=True)
        ]
        entropy = None
        if wanted.with_entropy:
            entropy = torch.cat([part.entropy for part in parts if part.entropy is not None])
            if not wanted.entropy_grad:
                ctx.mark_non_differentiable(entropy)
        return torch.cat([part.logprobs for part in parts]), entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[override]
        hidden, weight, bias = ctx.saved_tensors
        wanted, rows = ctx.wanted, ctx.rows
        needed = ctx.needs_input_grad
        found: list[Tensor | None] = [None] * _FORWARD_INPUTS
        if needed[0]:
            found[0] = torch.empty_like(hidden)
        with_entropy = wanted.with_entropy and wanted.entropy_grad
        chunks = zip(hidden.split(rows), wanted.split(rows), strict=True)
        for start, (chunk, of_chunk) in zip(range(0, len(hidden), rows), chunks, strict=True):
            inputs = [
                None if each is None else each.detach().requires_grad_(need)
                for each, need in zip((chunk, weight, bias), needed, strict=False)
            ]
            with torch.enable_grad():
                scores = score_logits(F.linear(*inputs), of_chunk)
            part = slice(start, start + len(chunk))
            outputs = [scores.logprobs, scores.entropy][: 1 + with_entropy]
            pairs = [
                (output, grad[part])
                for output, grad in zip(outputs, grads, strict=False)
                if grad is not None
            ]
            sought = [place for place, need in enumerate(needed[:3]) if need]
            gradients = torch.autograd.grad(
                [output for output, _ in pairs],
                [inputs[place] for place in sought],  # type: ignore[misc]
                [grad for _, grad in pairs],
            )
            for place, gradient in zip(sought, gradients, strict=True):
                if place == 0:
                    found[0][part] = gradient  # type: ignore[index]
                elif found[place] is None:
                    found[place] = gradient
                else:
                    found[place] += gradient  # type: ignore[operator]
        return tuple(found)
