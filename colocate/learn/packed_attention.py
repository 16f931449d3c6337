"""Attention over rows that lie end to end in one sequence, each seeing only itself.

transformers can do as much by a block-diagonal mask, which it makes from positions that restart.
That mask has (tokens)^2 elements, keeps torch from its fast causal kernels, and has every pair of
rows multiplied only to be masked. Here rows of one length, which lie side by side, make a batch of
their own: no mask, no padding, and no work across rows, on every device.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from colocate.learn.packing import Runs

PACKED_ATTENTION = "colocate_packed"
"""The name under which transformers knows it. It has no mask function, so no mask is made."""


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    packed_runs: Runs | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each row.

    Args:
        query: (1, heads, tokens, width); key and value alike, with heads of their own.
        packed_runs: How the tokens are divided; None for a batch that is not packed, which is
            transformers' own ``sdpa``.

    Returns:
        (1, tokens, heads, width), and None for the attention's weights.
    """
    if packed_runs is None:
        output, _ = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return output, None
    outputs = []
    start = 0
    for count, length in packed_runs:
        stop = start + count * length
        rows = [
            torch.unflatten(states[0, :, start:stop], 1, (count, length)).transpose(0, 1)
            for states in (query, key, value)
        ]
        output, _ = sdpa_attention_forward(module, *rows, None, **options)
        outputs.append(output.flatten(0, 1))
        start = stop
    return torch.cat(outputs).unsqueeze(0), None


AttentionInterface.register(PACKED_ATTENTION, packed_attention)
