"""The policy loss of each token of a micro-batch: one objective, put together from its parts.

ratio (token | sequence)  x  surrogate (clip | cispo | reinforce)  x  aggregation
                          x  correction (behaviour -> proximal)    + KL - entropy
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from colocate.config import AlgorithmConfig
from colocate.learn.aggregation import Aggregation, aggregation_of
from colocate.learn.correction import Correction, correct
from colocate.learn.kl import MAX_LOG_RATIO, kl_estimate
from colocate.learn.sequences import Sequences
from colocate.learn.surrogates import Surrogate, surrogate_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """Log-probabilities (N,) of the same tokens under each policy, and ``current``'s entropy.

    ``current`` bears the gradient, and ``entropy`` where there is a bonus on it; the rest is fixed.
    """

    current: Tensor
    proximal: Tensor
    behaviour: Tensor
    entropy: Tensor
    reference: Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenLoss:
    """Per-token terms, each (N,). ``loss`` bears the gradient; the rest do not.

    ``policy_loss`` is the loss without KL and entropy. ``ratio`` is the one that the surrogate saw;
    the marks after it are of tokens that its bounds changed. ``kl`` is the estimate wherever there
    is a reference, in the loss or not.
    """

    loss: Tensor
    policy_loss: Tensor
    ratio: Tensor
    clipped_low: Tensor
    clipped_high: Tensor
    clipped_dual: Tensor
    correction: Correction
    kl: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyLoss:
    """The loss that an algorithm names, with its parts."""

    algorithm: AlgorithmConfig
    surrogate: Surrogate
    aggregation: Aggregation

    @classmethod
    def of(cls, algorithm: AlgorithmConfig) -> PolicyLoss:
        """Puts the parts together.

        Raises:
            ValueError: a part lacks what it needs.
        """
        return cls(
            algorithm=algorithm,
            surrogate=surrogate_of(algorithm),
            aggregation=aggregation_of(algorithm),
        )

    def __call__(self, scores: Scores, advantages: Tensor, sequences: Sequences) -> TokenLoss:
        """The loss of each token, to be weighted and divided as ``aggregation`` says.

        A token that is not rejected has

            - w surrogate(r, A) - entropy_coef H + kl_coef kl

        The ratio r is of the current policy over one that stays as it is: in the ``decoupled``
        objective (arXiv:2110.00641; for asynchronous training arXiv:2505.24298) the *proximal*
        policy, which is the one that the step began with, so that the clip holds the policy near
        it, while the weight w, of the proximal over the *behaviour* policy, makes up for data that
        an older policy, or another engine, has sampled. In the ``plain`` objective r is over the
        behaviour policy; it carries the weight, and w only says what is rejected. ``reinforce``
        has no r: there w is of the current policy over the behaviour policy, without a gradient.

        At ratio ``sequence`` r is the geometric mean over a sequence's tokens, one for all of them
        (GSPO, arXiv:2507.18071). A rejected token has no loss at all.
        """
        algorithm = self.algorithm
        plain = algorithm.correction.objective == "plain"
        anchor = scores.behaviour if plain else scores.proximal
        log_ratio = scores.current - anchor.detach()
        if algorithm.ratio == "sequence":
            log_ratio = sequences.spread(sequences.mean(log_ratio))
        ratio = log_ratio.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
        terms = self.surrogate(ratio=ratio, current=scores.current, advantages=advantages)
        correction = correct(
            scores.current if plain else scores.proximal,
            scores.behaviour,
            sequences,
            algorithm.correction,
            ratio_carries_weight=plain and self.surrogate.uses_ratio,
        )
        policy_loss = -correction.weight * terms.objective
        loss = policy_loss
        if algorithm.entropy_coef:
            loss = loss - algorithm.entropy_coef * scores.entropy
        kl = None
        if scores.reference is not None:
            kl = kl_estimate(scores.current, scores.reference, algorithm.kl)
            if algorithm.kl.placement == "loss":
                loss = loss + algorithm.kl.coef * kl
        return TokenLoss(
            loss=torch.where(correction.rejected, torch.zeros_like(loss), loss),
            policy_loss=policy_loss.detach(),
            ratio=ratio.detach(),
            clipped_low=terms.clipped_low,
            clipped_high=terms.clipped_high,
            clipped_dual=terms.clipped_dual,
            correction=correction,
            kl=None if kl is None else kl.detach(),
        )
