"""How far the engine's probabilities are from the trainer's for the same tokens and weights."""

from __future__ import annotations

import torch
from torch import Tensor


def mismatch_totals(
    trainer: Tensor, engine: Tensor, same_weights: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Sums and maxima over the tokens that the step's own weights sampled.

    Args:
        trainer: Log-probabilities (N,) by the weights the step begins with.
        engine: Log-probabilities (N,) that the tokens were sampled with.
        same_weights: Bool (N,): the token's version is the step's. Other tokens differ because
            their policy is older, and say nothing about the engine.

    Returns:
        Sums and maxima by name, to be added up over micro-batches and ranks.
    """
    # In float64: k3 of engines that agree is a difference of nearly equal numbers.
    difference = (trainer.double() - engine.double())[same_weights]
    ratio = difference.exp()
    sums = {
        "mismatch_tokens": same_weights.sum(),
        "mismatch_abs": difference.abs().sum(),
        "mismatch_k3": (difference.expm1() - difference).sum(),
        "mismatch_ratio": ratio.sum(),
        "mismatch_ratio_squared": ratio.square().sum(),
    }
    if not difference.numel():
        lowest = torch.full((), -torch.inf, device=trainer.device)
        return sums, {
            "mismatch_abs_max": lowest,
            "mismatch_ratio_max": lowest,
            "mismatch_ratio_negated_min": lowest,
        }
    return sums, {
        "mismatch_abs_max": difference.abs().max(),
        "mismatch_ratio_max": ratio.max(),
        "mismatch_ratio_negated_min": -ratio.min(),
    }


def mismatch_metrics(totals: dict[str, float]) -> dict[str, float]:
    """Metrics from the totals of a step; empty where no token was sampled by its weights.

    ``mismatch_k3_kl`` is the k3 estimate of KL(engine | trainer). ``mismatch_ess`` is the
    effective sample size of the importance weights over the number of tokens,
    ``(sum r)^2 / (n sum r^2)``, 1 where the engines agree (Kong 1992).
    """
    count = totals["mismatch_tokens"]
    if not count:
        return {}
    return {
        "mismatch_mean_abs_logprob_diff": totals["mismatch_abs"] / count,
        "mismatch_max_abs_logprob_diff": totals["mismatch_abs_max"],
        "mismatch_k3_kl": totals["mismatch_k3"] / count,
        "mismatch_ess": totals["mismatch_ratio"] ** 2 / (count * totals["mismatch_ratio_squared"]),
        "mismatch_ratio_min": -totals["mismatch_ratio_negated_min"],
        "mismatch_ratio_max": totals["mismatch_ratio_max"],
    }
