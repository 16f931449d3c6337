"""The policy loss of a micro-batch, as a sum over its tokens."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from colocate.config import AlgorithmConfig
from colocate.learn.correction import importance_weights

MAX_LOG_RATIO = 20.0
"""Log-ratios are held within this, so that no ratio overflows; far outside of any clip."""


@dataclass(frozen=True, slots=True)
class TokenLoss:
    """Per-token terms, each (N,). ``loss`` and ``entropy`` may bear gradients; the rest do not.

    ``ratio`` is current over proximal, ``weight`` the importance weight of proximal over
    behaviour. ``clipped_low`` and ``clipped_high`` mark tokens whose gradient the clip removed.
    """

    loss: Tensor
    policy_loss: Tensor
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    weight: Tensor
    truncated: Tensor
    kl: Tensor | None


def token_loss(
    *,
    current: Tensor,
    proximal: Tensor,
    behaviour: Tensor,
    advantages: Tensor,
    entropy: Tensor,
    reference: Tensor | None,
    algorithm: AlgorithmConfig,
) -> TokenLoss:
    """The loss of each token, from log-probabilities (N,) of four policies.

    With r = current / proximal and w = min(proximal / behaviour, C):

        - w min(r A, clip(r, 1 - clip_low, 1 + clip_high) A) - entropy_coef H + kl_coef k3

    PPO's clipped surrogate (arXiv:1707.06347), its two bounds apart (DAPO, arXiv:2503.14476),
    around a *proximal* policy, which is the one that the step began with, while the data came
    from a *behaviour* policy that may be older: the decoupled objective (arXiv:2110.00641;
    arXiv:2505.24298). k3 = q/p - 1 - log(q/p), for p the current policy and q the reference, is
    an unbiased estimator of KL(p | q) that is never negative (Schulman, "Approximating KL
    divergence", 2020; GRPO, arXiv:2402.03300).
    """
    ratio = _bounded(current - proximal.detach()).exp()
    bounded = ratio.clamp(1 - algorithm.clip_low, 1 + algorithm.clip_high)
    surrogate = torch.minimum(ratio * advantages, bounded * advantages)
    weight, truncated = importance_weights(proximal, behaviour, algorithm.correction)
    policy_loss = -weight * surrogate
    loss = policy_loss
    if algorithm.entropy_coef:
        loss = loss - algorithm.entropy_coef * entropy
    kl = None
    if reference is not None:
        log_ratio = _bounded(reference - current)
        kl = log_ratio.exp() - 1 - log_ratio
        loss = loss + algorithm.kl_coef * kl
    fixed = ratio.detach()
    return TokenLoss(
        loss=loss,
        policy_loss=policy_loss.detach(),
        ratio=fixed,
        clipped_low=(fixed < 1 - algorithm.clip_low) & (advantages < 0),
        clipped_high=(fixed > 1 + algorithm.clip_high) & (advantages > 0),
        weight=weight,
        truncated=truncated,
        kl=None if kl is None else kl.detach(),
    )


def _bounded(log_ratio: Tensor) -> Tensor:
    return log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
