"""Activations that the backward pass computes again instead of keeping (gradient checkpointing)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers.modeling_layers import GradientCheckpointingLayer


def recompute_layers(model: nn.Module) -> None:
    """Has each layer of a model keep its input only, while gradients are computed.

    transformers would do so in training mode alone, which also means dropout: then the same weights
    would give other probabilities the second time.

    Raises:
        ValueError: a model whose layers are not marked as such.
    """
    layers = [each for each in model.modules() if isinstance(each, GradientCheckpointingLayer)]
    if not layers:
        raise ValueError(
            f"trainer.gradient_checkpointing=true does not go with this model: "
            f"{type(model).__name__} does not say which layers could be computed again; set it to "
            f"false"
        )
    for layer in layers:
        layer.forward = functools.partial(_recomputed, layer.forward)


def _recomputed(forward: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    # What no gradient reaches needs none of it, and would get none through the node below.
    reached = any(isinstance(each, Tensor) and each.requires_grad for each in inputs)
    if not (reached and torch.is_grad_enabled()):
        return forward(*inputs, **options)
    # Reentrant: the layer runs again as a graph of its own, between whose modules ZeRO 3 gathers
    # weights. Otherwise its hooks have let go of them again when the first gradient is computed. In
    # evaluation mode no random numbers are drawn, so there is no state of theirs to restore.
    run = functools.partial(forward, **options)
    return checkpoint(run, *inputs, use_reentrant=True, preserve_rng_state=False)
