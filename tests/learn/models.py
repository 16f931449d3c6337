"""Small models with random weights, of many architectures, and rows of random tokens for them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM

from colocate.learn.batches import Row

VOCABULARY = 23

_SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def small_model(kind: str, *, attention: str = "sdpa", **settings: Any) -> nn.Module:
    """Of ``model_type`` ``kind``, in float64; the same weights every time."""
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **(_SHAPE | settings))
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention).double().eval()


def random_row(length: int, seed: int) -> Row:
    """Of which half of the tokens, and the last, were sampled."""
    draw = np.random.default_rng(seed)
    token_ids = draw.integers(VOCABULARY, size=length)
    positions = np.flatnonzero(np.append(draw.random(length - 2) < 0.5, True))
    return Row(
        token_ids=token_ids,
        positions=positions,
        targets=token_ids[positions + 1],
        behaviour_logprobs=np.zeros(len(positions), dtype=np.float32),
        versions=np.zeros(len(positions), dtype=np.int64),
        advantage=1.0,
    )
