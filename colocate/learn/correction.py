"""Off-policy correction: importance weights over the behaviour policy, and what is rejected.

A rejected token takes no part in the loss, be it in the policy's term, the KL penalty or the
entropy bonus. It still counts in what the loss is divided by: the estimate stays that of the whole
mini-batch (with a weight of zero, as importance sampling has it), the divisor is known before any
forward pass, and a batch of which little is left takes a small step rather than a wild one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from colocate.config import CorrectionConfig
from colocate.learn.sequences import Sequences


@dataclass(frozen=True, slots=True, kw_only=True)
class Correction:
    """What becomes of each token; all (N,), none bears a gradient.

    ``weight`` multiplies the token's surrogate, and is 0 where it is rejected. ``truncated`` marks
    weights that the cap cut. The other marks are reasons of rejection: a weight outside of what
    ``mask`` lets through, a sequence outside of the band, a sequence with a vetoed token.
    """

    weight: Tensor
    truncated: Tensor
    masked: Tensor
    out_of_band: Tensor
    vetoed: Tensor

    @property
    def rejected(self) -> Tensor:
        return self.masked | self.out_of_band | self.vetoed


def correct(
    numerator: Tensor,
    behaviour: Tensor,
    sequences: Sequences,
    config: CorrectionConfig,
    *,
    ratio_carries_weight: bool = False,
) -> Correction:
    """Weights from log-probabilities (N,) of the policy to be estimated and of the behaviour's.

    With d = numerator - behaviour, the ratio rho of a token is

        exp(d)              at level ``token``
        exp(sum of d)       at level ``sequence``, over the tokens of its sequence
        exp(mean of d)      at level ``geometric``

    and its weight

        min(rho, C)                    ``truncate``: biased, of bounded variance (Ionides 2008,
                                       "Truncated importance sampling")
        rho if c <= rho <= C, else 0   ``mask``: what is too far off is dropped, and adds no bias of
                                       its own (IcePop, arXiv:2510.18855, for tokens; "When speed
                                       kills stability", Liu et al. 2025, for sequences)
        1                              ``none``

    Token ratios have the least variance, but are no estimate of what whole sequences are worth;
    products over sequences are, and vary the more the longer they are; the geometric mean is a
    compromise that length does not blow up. Apart from weights, sequences whose geometric-mean
    ratio leaves the band, or one of whose tokens has a ratio below the veto, are rejected whole:
    such a token could hardly have been sampled, and so tells of a fault rather than of a policy
    (both: Liu et al. 2025; trust-region masking, arXiv:2512.23075).

    Args:
        ratio_carries_weight: The surrogate's own ratio is over the behaviour policy: weights are
            1 where nothing is rejected.
    """
    log_ratio = (numerator - behaviour).detach()
    geometric = sequences.mean(log_ratio)
    judged = {
        "token": lambda: log_ratio,
        "sequence": lambda: sequences.spread(sequences.total(log_ratio)),
        "geometric": lambda: sequences.spread(geometric),
    }[config.level]()

    log_cap = math.log(config.cap)
    above = judged > log_cap
    nothing = torch.zeros_like(above)
    masked = nothing
    if config.mode == "mask":
        masked = above
        if config.floor is not None:
            masked = masked | (judged < math.log(config.floor))
    if config.mode == "none" or ratio_carries_weight:
        weight = torch.ones_like(log_ratio)
    else:
        weight = judged.clamp(max=log_cap).exp()

    outside = torch.zeros_like(geometric, dtype=torch.bool)
    if config.band_low is not None:
        outside = outside | (geometric < math.log(config.band_low))
    if config.band_high is not None:
        outside = outside | (geometric > math.log(config.band_high))
    vetoed = nothing
    if config.veto is not None:
        vetoed = sequences.spread(sequences.any(log_ratio < math.log(config.veto)))

    out_of_band = sequences.spread(outside)
    return Correction(
        weight=weight.masked_fill(masked | out_of_band | vetoed, 0),
        truncated=above if config.mode == "truncate" else nothing,
        masked=masked,
        out_of_band=out_of_band,
        vetoed=vetoed,
    )
