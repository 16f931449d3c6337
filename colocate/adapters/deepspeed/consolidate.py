"""Whole weights from a trainer's checkpoint, without ranks and without a GPU."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from colocate.adapters.deepspeed.checkpoint_files import TAG, read_description
from colocate.config import LoraConfig
from colocate.learn.lora import merged_state

_WRAPPER = "model."
"""``TokenScorer`` holds the Hugging Face model under this name."""


def consolidated_weights(folder: Path) -> dict[str, Tensor]:
    """Every weight in full, float32, by its Hugging Face name, from what ``save`` wrote.

    Adapters are merged: the model is an ordinary one. Of what is trained these are the master
    weights under ZeRO, so more exact than what a bfloat16 engine computes with.
    DeepSpeed unpickles its files: read only folders that you trust.

    Raises:
        ValueError: where the folder holds no trainer checkpoint.
    """
    description = read_description(folder)
    lora = description.get("lora")
    state: dict[str, Tensor] = {}
    if description["zero_stage"] < 3 and (lora or description["zero_stage"] == 0):
        # The model as it computes. ZeRO 1 has weights that are not trained nowhere else.
        states = folder / TAG / "mp_rank_00_model_states.pt"
        state |= torch.load(states, map_location="cpu", weights_only=False)["module"]
    if description["zero_stage"] > 0:
        state |= _from_shards(folder)
    named = {name.removeprefix(_WRAPPER): value for name, value in state.items()}
    if lora is None:
        return {name: value.float() for name, value in named.items()}
    return merged_state(named, scale=LoraConfig.model_validate(lora).scale)


def _from_shards(folder: Path) -> dict[str, Tensor]:
    # It only reads files, and need not look for a device, of whose lack it would complain.
    chosen = os.environ.get("DS_ACCELERATOR")
    os.environ["DS_ACCELERATOR"] = "cpu"
    try:
        from deepspeed.utils.zero_to_fp32 import get_fp32_state_dict_from_zero_checkpoint
    finally:
        del os.environ["DS_ACCELERATOR"]
        if chosen is not None:
            os.environ["DS_ACCELERATOR"] = chosen
    state: dict[str, Tensor] = get_fp32_state_dict_from_zero_checkpoint(str(folder), tag=TAG)
    return state
