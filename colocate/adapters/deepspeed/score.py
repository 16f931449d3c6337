"""What the trainer's own weights say of fixed prompts, to compare an engine with."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from colocate.adapters.deepspeed.engine import TrainingEngine
from colocate.learn.batches import Row, collate


@torch.no_grad()
def score_prompts(
    engine: TrainingEngine, prompts: Sequence[Sequence[int]], *, device: torch.device
) -> list[Tensor]:
    """Float32 log-probabilities (T - 1,) of each prompt's tokens but the first, at temperature 1.

    All ranks call it together, with parameters resident. The prompts go through one forward pass.
    """
    batch = collate([_row(prompt) for prompt in prompts], device=device, packed=engine.packed)
    logprobs, _ = engine.deepspeed(batch, with_entropy=False, temperature=1.0)
    return list(torch.split(logprobs, [len(prompt) - 1 for prompt in prompts]))


def _row(prompt: Sequence[int]) -> Row:
    token_ids = np.asarray(prompt, dtype=np.int64)
    wanted = len(token_ids) - 1
    return Row(
        token_ids=token_ids,
        positions=np.arange(wanted),
        targets=token_ids[1:],
        behaviour_logprobs=np.zeros(wanted, dtype=np.float32),
        versions=np.zeros(wanted, dtype=np.int64),
        advantage=0.0,
    )
