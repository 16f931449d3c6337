"""How far the engine's probabilities are from the trainer's for the same tokens and weights."""

from __future__ import annotations

import math

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
        "mismatch_trainer": trainer[same_weights].double().sum(),
        "mismatch_engine": engine[same_weights].double().sum(),
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

    With ``r`` the ratio of the trainer's over the engine's probability of a sampled token, ``d``
    its logarithm, and means over the ``n`` tokens of the step's own weights:

    - ``mismatch_k3_kl``, the k3 estimate of KL(engine | trainer), is the mean of ``r - 1 - d``
      (Schulman 2020);
    - ``mismatch_ess``, the effective sample size of importance weights ``r`` as a share of ``n``,
      is ``(sum r)^2 / (n sum r^2)`` (Kong 1992): 1 where the two agree;
    - ``mismatch_ratio_mean`` estimates the engine's expectation of ``r``, which is 1 whatever the
      mismatch, as long as every token that the trainer may sample is sampled by the engine too;
    - a perplexity is ``exp(-mean log p)``, of tokens that the engine sampled in both cases: the
      logarithm of trainer's over engine's is the k1 estimate of the same KL.

    Raises:
        OverflowError: a perplexity beyond float64, which finite weights that sampled these tokens
            do not have.
    """
    count = totals["mismatch_tokens"]
    if not count:
        return {}
    return {
        "mismatch_num_tokens": count,
        "mismatch_mean_abs_logprob_diff": totals["mismatch_abs"] / count,
        "mismatch_max_abs_logprob_diff": totals["mismatch_abs_max"],
        "mismatch_k3_kl": totals["mismatch_k3"] / count,
        "mismatch_ess": totals["mismatch_ratio"] ** 2 / (count * totals["mismatch_ratio_squared"]),
        "mismatch_ratio_mean": totals["mismatch_ratio"] / count,
        "mismatch_ratio_min": -totals["mismatch_ratio_negated_min"],
        "mismatch_ratio_max": totals["mismatch_ratio_max"],
        "mismatch_trainer_perplexity": math.exp(-totals["mismatch_trainer"] / count),
        "mismatch_engine_perplexity": math.exp(-totals["mismatch_engine"] / count),
    }
