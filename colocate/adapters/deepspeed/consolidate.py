"""Whole weights from a trainer's checkpoint, without ranks and without a GPU."""

from __future__ import annotations

from pathlib import Path

import torch
from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
from torch import Tensor

from colocate.adapters.deepspeed.checkpoint import TAG, read_description

_WRAPPER = "model."
"""``TokenScorer`` holds the Hugging Face model under this name."""


def consolidated_weights(folder: Path) -> dict[str, Tensor]:
    """Every parameter in full, float32, by its Hugging Face name, from what ``save`` wrote.

    The master weights under ZeRO, so more exact than what a bfloat16 engine computes with.
    DeepSpeed unpickles its files: read only folders that you trust.

    Raises:
        ValueError: where the folder holds no trainer checkpoint.
    """
    if read_description(folder)["zero_stage"] == 0:
        state = torch.load(
            folder / TAG / "mp_rank_00_model_states.pt", map_location="cpu", weights_only=False
        )["module"]
    else:
        state = get_fp32_state_dict_from_zero_checkpoint(str(folder), tag=TAG)
    return {name.removeprefix(_WRAPPER): value.float() for name, value in state.items()}
