"""Activations that the backward pass computes again instead of keeping (gradient checkpointing)."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop
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
    if not torch.is_grad_enabled():
        return forward(*inputs, **options)
    # A layer is computed again to its end, and not by an exception to where it is enough: ZeRO 3
    # lets go of a module's weights in a hook after its forward pass. In evaluation mode no random
    # numbers are drawn, so there is no state of theirs to restore.
    with set_checkpoint_early_stop(False):
        return checkpoint(
            forward, *inputs, use_reentrant=False, preserve_rng_state=False, **options
        )
