"""Which models can be trained on rows laid end to end. Reads settings only; imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from colocate.config import Packing

Runs = tuple[tuple[int, int], ...]
"""Runs of rows of one length, in order: how many rows, and how many tokens each has."""

PACKABLE_MODEL_TYPES = frozenset(
    {
        "cohere",
        "gemma",
        "granite",
        "llama",
        "mistral",
        "olmo2",
        "qwen2",
        "qwen3",
        "smollm3",
    }
)
"""Architectures that are known to score packed rows as padded ones: tests try each of them."""


def reason_to_pad(settings: Mapping[str, Any]) -> str | None:
    """Why a model's rows must be padded; None where they may be packed.

    A layer may be packed where its attention is the only thing in it that mixes tokens, and sees
    all that came before: then cutting the attention between rows is enough. Recurrent layers carry
    a state over the cut, and sliding windows are masks, which packed attention does without.

    Args:
        settings: The model's ``config.json``, or the mapping that transformers makes of it.
    """
    kind = settings.get("model_type")
    if kind not in PACKABLE_MODEL_TYPES:
        return (
            f"models of type {kind!r} are not among those known to score packed rows right "
            f"({', '.join(sorted(PACKABLE_MODEL_TYPES))})"
        )
    layers = settings.get("layer_types")
    if layers:
        others = sorted(set(layers) - {"full_attention"})
        return f"it has layers of {', '.join(others)}" if others else None
    if settings.get("sliding_window") is not None and settings.get("use_sliding_window", True):
        return "its attention has a sliding window"
    return None


def decide_packing(packing: Packing, settings: Mapping[str, Any]) -> bool:
    """Whether to pack, for a model of these settings.

    Raises:
        ValueError: packing is asked for where rows must be padded.
    """
    reason = reason_to_pad(settings)
    if packing is True and reason is not None:
        raise ValueError(
            f"trainer.packing=true does not go with this model: {reason}; set trainer.packing=auto"
        )
    return packing is not False and reason is None
