"""The KL divergence of the policy from a reference, estimated from the tokens that were sampled."""

from __future__ import annotations

import torch
from torch import Tensor

from colocate.config import KlConfig
from colocate.learn.sequences import Sequences

MAX_LOG_RATIO = 20.0
"""Log-ratios are held within this, so that no ratio overflows; far outside of any clip."""


def kl_estimate(policy: Tensor, reference: Tensor, config: KlConfig) -> Tensor:
    """An estimate (N,) of KL(policy | reference) for each token, from log-probabilities (N,).

    With d = reference - policy (Schulman, "Approximating KL divergence", 2020):

        k1 = -d                 unbiased; may be negative, varies much
        k2 = d^2 / 2            biased; its gradient is that of the divergence
        k3 = exp(d) - 1 - d     unbiased, never negative; GRPO's (arXiv:2402.03300)

    That holds for tokens that the policy itself sampled, and of the value. As a term of the loss,
    k1 has a gradient whose mean is zero, k2 that of the divergence, and k3 that of the divergence
    the other way round (arXiv:2510.01555). In k3, d is held within 20 in its exponential.
    """
    log_ratio = reference - policy
    match config.estimator:
        case "k1":
            return -log_ratio
        case "k2":
            return log_ratio.square() / 2
        case "k3":
            return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).expm1() - log_ratio


@torch.no_grad()
def sequence_penalties(
    policy: Tensor, reference: Tensor, sequences: Sequences, config: KlConfig
) -> Tensor:
    """What is taken off the reward of each sequence, float64 (S,): coef x the sum over its tokens.

    The penalty of RLHF (arXiv:1909.08593; RLOO, arXiv:2402.14740), which with k1 and a policy that
    sampled the data gives the divergence's own gradient. It is taken off the whole trajectory's
    reward; REINFORCE++ (arXiv:2501.03262) takes off each token's that of the tokens from it on.
    """
    return config.coef * sequences.total(kl_estimate(policy, reference, config).double())
