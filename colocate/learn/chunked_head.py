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


def in_float32(head: nn.Linear, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
    """What a head reads and holds, cast so that it computes in float32.

    bfloat16 operands are exact in float32, and so are their products up to its rounding: the order
    of summation is all that is left to differ from another implementation.
    """
    return hidden.float(), head.weight.float(), None if head.bias is None else head.bias.float()


def head_scores(
    head: nn.Linear,
    hidden: Tensor,
    wanted: Wanted,
    *,
    max_elements: int,
    fp32: bool = False,
) -> Tensor:
    """Float32 scores (N, 1), log-probabilities; (N, 2), with entropies, where these are wanted.

    To be called within the head's own forward pass, where ZeRO 3 has its weight gathered.

    Args:
        hidden: (N, H), what the head reads at the wanted positions.
        max_elements: Of logits at a time, at most, unless a single position has more.
        fp32: Compute logits in float32, whatever the type of the head.
    """
    operands = in_float32(head, hidden) if fp32 else (hidden, head.weight, head.bias)
    if len(hidden) <= max(1, max_elements // head.out_features):
        scores = score_logits(F.linear(*operands), wanted)
    else:
        apply: Any = _ChunkedScores.apply
        scores = TokenScores(*apply(*operands, wanted, max_elements))
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
            for chunk, of_chunk in zip(
                torch.split(hidden, ctx.rows), wanted.split(ctx.rows), strict=True
            )
        ]
        entropy = None
        if wanted.with_entropy:
            entropy = torch.cat([part.entropy for part in parts if part.entropy is not None])
            if not wanted.entropy_grad:
                ctx.mark_non_differentiable(entropy)
        return torch.cat([part.logprobs for part in parts]), entropy

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, ...]:
        hidden, weight, bias = ctx.saved_tensors
        wanted, rows = ctx.wanted, ctx.rows
        seeks_hidden, seeks_weight, seeks_bias, *_ = ctx.needs_input_grad
        of_hidden = torch.empty_like(hidden) if seeks_hidden else None
        of_head: list[Tensor] | None = None
        chunks = zip(torch.split(hidden, rows), wanted.split(rows), strict=True)
        for start, (chunk, of_chunk) in zip(range(0, len(hidden), rows), chunks, strict=True):
            own = chunk.detach().requires_grad_(seeks_hidden)
            own_weight = weight.detach().requires_grad_(seeks_weight)
            own_bias = None if bias is None else bias.detach().requires_grad_(seeks_bias)
            with torch.enable_grad():
                scores = score_logits(F.linear(own, own_weight, own_bias), of_chunk)
            part = slice(start, start + len(chunk))
            outputs, weights = [], []
            for output, grad in zip(scores, grads, strict=True):
                if output is not None and output.requires_grad and grad is not None:
                    outputs.append(output)
                    weights.append(grad[part])
            inputs = [
                each
                for each in (own, own_weight, own_bias)
                if each is not None and each.requires_grad
            ]
            found = list(torch.autograd.grad(outputs, inputs, weights))
            if of_hidden is not None:
                of_hidden[part] = found.pop(0)
            if of_head is None:
                of_head = found
            else:
                for total, gradient in zip(of_head, found, strict=True):
                    total += gradient
        left = list(of_head or [])
        of_weight = left.pop(0) if seeks_weight else None
        of_bias = left.pop(0) if seeks_bias else None
        return of_hidden, of_weight, of_bias, None, None
