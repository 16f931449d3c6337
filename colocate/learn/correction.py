"""Importance weights of the trainer's policy over the behaviour policy."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from colocate.config import CorrectionConfig


def importance_weights(
    proximal: Tensor, behaviour: Tensor, correction: CorrectionConfig
) -> tuple[Tensor, Tensor]:
    """Per token, ``min(proximal / behaviour, C)``, and whether the cap C cut it.

    Arguments are log-probabilities (N,); so are the results' shapes. The weight makes data of an
    older policy, or of an engine that computes a little differently, count as if the proximal
    policy had sampled it; the cap bounds the variance (truncated importance sampling, Ionides
    2008; between rollout engine and trainer as in arXiv:2505.24298, section 5.2, whose decoupled
    objective it completes). Weights carry no gradient. Mode ``none`` gives 1.
    """
    log_ratio = (proximal - behaviour).detach()
    if correction.mode == "none":
        return torch.ones_like(log_ratio), torch.zeros_like(log_ratio, dtype=torch.bool)
    log_cap = math.log(correction.cap)
    return log_ratio.clamp(max=log_cap).exp(), log_ratio > log_cap
