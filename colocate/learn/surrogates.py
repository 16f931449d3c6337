"""Surrogates: what is maximised of a token, given its ratio, log-probability and advantage."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import torch
from torch import Tensor

from colocate.config import AlgorithmConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class SurrogateTerms:
    """Per token, each (N,). ``objective`` is to be maximised and bears the gradient.

    ``clipped_low``, ``clipped_high`` and ``clipped_dual`` mark tokens that a bound changed.
    """

    objective: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    clipped_dual: Tensor


class Surrogate(Protocol):
    """The objective of each token, from tensors (N,).

    ``ratio`` bears the gradient of the current policy, as ``current``, its log-probability, does;
    ``advantages`` bears none. ``uses_ratio`` says whether the ratio plays a part.
    """

    uses_ratio: ClassVar[bool]

    def __call__(self, *, ratio: Tensor, current: Tensor, advantages: Tensor) -> SurrogateTerms: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """``min(r A, clip(r, 1 - low, 1 + high) A)``, for A < 0 at least ``dual A``.

    PPO's clipped surrogate (arXiv:1707.06347), its two bounds apart ("clip-higher" of DAPO,
    arXiv:2503.14476). What a bound changed has no gradient. The dual clip (arXiv:1912.09729) bounds
    the one case that PPO leaves open: a bad action that the current policy likes far better.
    """

    uses_ratio: ClassVar[bool] = True

    low: float
    high: float
    dual: float | None = None

    def __call__(self, *, ratio: Tensor, current: Tensor, advantages: Tensor) -> SurrogateTerms:
        bounded = ratio.clamp(1 - self.low, 1 + self.high)
        objective = torch.minimum(ratio * advantages, bounded * advantages)
        fixed = ratio.detach()
        clipped_dual = torch.zeros_like(fixed, dtype=torch.bool)
        if self.dual is not None:
            clipped_dual = (advantages < 0) & (fixed > self.dual)
            objective = torch.where(clipped_dual, self.dual * advantages, objective)
        return SurrogateTerms(
            objective=objective,
            clipped_low=(fixed < 1 - self.low) & (advantages < 0),
            clipped_high=(fixed > 1 + self.high) & (advantages > 0),
            clipped_dual=clipped_dual,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cispo:
    """``sg(clip(r, 1 - low, 1 + high)) A log pi``, where sg bears no gradient.

    CISPO (MiniMax-M1, arXiv:2506.13585, section 3.1): every token keeps its gradient, and only the
    size of its importance weight is bounded.
    """

    uses_ratio: ClassVar[bool] = True

    low: float
    high: float

    def __call__(self, *, ratio: Tensor, current: Tensor, advantages: Tensor) -> SurrogateTerms:
        fixed = ratio.detach()
        coefficient = fixed.clamp(1 - self.low, 1 + self.high)
        return SurrogateTerms(
            objective=coefficient * advantages * current,
            clipped_low=fixed < 1 - self.low,
            clipped_high=fixed > 1 + self.high,
            clipped_dual=torch.zeros_like(fixed, dtype=torch.bool),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Reinforce:
    """``A log pi``: the plain policy gradient (Williams 1992; for sequences arXiv:2402.14740).

    That the data came from another policy is the correction's business.
    """

    uses_ratio: ClassVar[bool] = False

    def __call__(self, *, ratio: Tensor, current: Tensor, advantages: Tensor) -> SurrogateTerms:
        nothing = torch.zeros_like(ratio, dtype=torch.bool)
        return SurrogateTerms(
            objective=advantages * current,
            clipped_low=nothing,
            clipped_high=nothing,
            clipped_dual=nothing,
        )


def surrogate_of(algorithm: AlgorithmConfig) -> Surrogate:
    """The surrogate that an algorithm names."""
    match algorithm.surrogate:
        case "clip":
            return Clip(low=algorithm.clip_low, high=algorithm.clip_high, dual=algorithm.dual_clip)
        case "cispo":
            return Cispo(low=algorithm.clip_low, high=algorithm.clip_high)
        case "reinforce":
            return Reinforce()
