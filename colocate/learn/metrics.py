"""What a training step reports: totals over micro-batches and ranks, then means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from colocate.learn.batches import MicroBatch
from colocate.learn.group_versions import group_version_metrics
from colocate.learn.losses import TokenLoss
from colocate.learn.mismatch import mismatch_metrics
from colocate.ports import TrainingBatch, TrainingSample


class Totals:
    """Sums and maxima by name. Ranks must add under the same names: the order is the names'."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._maxima: dict[str, Tensor] = {}

    def add(self, sums: Mapping[str, Tensor], maxima: Mapping[str, Tensor]) -> None:
        """Adds scalars of any type; they are kept in float64."""
        for name, value in sums.items():
            value = value.detach().double()
            self._sums[name] = self._sums[name] + value if name in self._sums else value
        for name, value in maxima.items():
            value = value.detach().double()
            self._maxima[name] = (
                torch.maximum(self._maxima[name], value) if name in self._maxima else value
            )

    def reduced(
        self, add_over_ranks: Callable[[Tensor], None], max_over_ranks: Callable[[Tensor], None]
    ) -> dict[str, float]:
        """The totals over all ranks. The callables reduce a 1-d float64 tensor in place."""
        totals: dict[str, float] = {}
        for values, reduce in ((self._sums, add_over_ranks), (self._maxima, max_over_ranks)):
            names = sorted(values)
            stacked = torch.stack([values[name] for name in names])
            reduce(stacked)
            totals.update(zip(names, stacked.tolist(), strict=True))
        return totals


def loss_totals(
    terms: TokenLoss, entropy: Tensor, micro_batch: MicroBatch, weights: Tensor
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Sums and maxima of the loss's terms over a micro-batch; a dummy's are zero.

    ``weights`` (N,) are those of the loss's aggregation.
    """
    real = micro_batch.weights
    sequences = micro_batch.sequences
    correction = terms.correction
    rejected = correction.rejected
    per_token = {
        "entropy": entropy,
        "ratio": terms.ratio,
        "clipped_low": terms.clipped_low,
        "clipped_high": terms.clipped_high,
        "clipped_dual": terms.clipped_dual,
        "weight": correction.weight,
        "truncated": correction.truncated,
        "rejected": rejected,
        "masked_weight": correction.masked,
        "out_of_band": correction.out_of_band,
        "vetoed": correction.vetoed,
    }
    if terms.kl is not None:
        per_token["kl"] = terms.kl
    sums = {name: (values * real).sum() for name, values in per_token.items()}
    sums["tokens"] = real.sum()
    sums["loss"] = (terms.loss * weights).sum()
    sums["policy_loss"] = (terms.policy_loss * weights).sum()
    # A dummy's only token is no sequence.
    genuine = sequences.mean(real)
    sums["sequences"] = genuine.sum()
    sums["rejected_sequences"] = (sequences.all(rejected) * genuine).sum()
    maxima = {
        "ratio_max": (terms.ratio * real).max(),
        "weight_max": (correction.weight * real).max(),
    }
    return sums, maxima


def loss_metrics(totals: dict[str, float], *, denominator: float) -> dict[str, float]:
    """Metrics from a step's totals: means over its trainable tokens, but for the losses.

    ``denominator`` is the sum of the aggregation's over the step's mini-batches: what the losses
    are divided by.
    """
    tokens = totals["tokens"]
    metrics = {
        "loss": totals["loss"] / denominator,
        "policy_loss": totals["policy_loss"] / denominator,
        "entropy": totals["entropy"] / tokens,
        "clip_fraction_low": totals["clipped_low"] / tokens,
        "clip_fraction_high": totals["clipped_high"] / tokens,
        "clip_fraction_dual": totals["clipped_dual"] / tokens,
        "ratio_mean": totals["ratio"] / tokens,
        "ratio_max": totals["ratio_max"],
        "importance_weight_mean": totals["weight"] / tokens,
        "importance_weight_max": totals["weight_max"],
        "importance_weight_truncated_fraction": totals["truncated"] / tokens,
        "rejected_token_fraction": totals["rejected"] / tokens,
        "rejected_by_mask_fraction": totals["masked_weight"] / tokens,
        "rejected_by_band_fraction": totals["out_of_band"] / tokens,
        "rejected_by_veto_fraction": totals["vetoed"] / tokens,
        "rejected_sequence_fraction": totals["rejected_sequences"] / totals["sequences"],
        "num_tokens": tokens,
    }
    if "kl" in totals:
        metrics["kl"] = totals["kl"] / tokens
    return metrics | mismatch_metrics(totals)


def batch_metrics(batch: TrainingBatch, advantages: Sequence[float]) -> dict[str, float]:
    """Metrics of the data: rewards, lengths, and the lag of trained tokens.

    Advantages, lengths and flat groups are over the samples that are not masked. Rewards, as the
    environment gave them, the versions within groups and lag, in versions, are over those of them
    that are not replayed, and absent where all are. The lag of replayed tokens is told apart.
    """
    trained = [sample for sample in batch.samples if not sample.masked]
    own = [sample for sample in trained if sample.origin is None]
    replayed = [sample for sample in trained if sample.origin is not None]
    by_group: dict[int, set[float]] = {}
    for sample in trained:
        by_group.setdefault(sample.group, set()).add(sample.reward)
    metrics = {
        "advantage_abs_max": float(np.abs(np.asarray(advantages)).max()),
        "flat_group_fraction": sum(len(r) == 1 for r in by_group.values()) / len(by_group),
        "num_sequences": float(len(trained)),
        "num_replayed": float(len(replayed)),
        "num_masked": float(len(batch.samples) - len(trained)),
        "truncated_fraction": float(np.mean([sample.truncated for sample in trained])),
        "sequence_length_mean": float(np.mean([len(sample.token_ids) for sample in trained])),
        "sequence_length_max": float(max(len(sample.token_ids) for sample in trained)),
    }
    metrics |= _reward_metrics(own) | group_version_metrics(own)
    return metrics | _lag_metrics("lag", batch, own) | _lag_metrics("replay_lag", batch, replayed)


def _reward_metrics(samples: Sequence[TrainingSample]) -> dict[str, float]:
    if not samples:
        return {}
    rewards = np.array([sample.reward for sample in samples], dtype=np.float64)
    return {
        "reward_mean": float(rewards.mean()),
        "reward_std": float(rewards.std()),
        "reward_min": float(rewards.min()),
        "reward_max": float(rewards.max()),
    }


def _lag_metrics(
    name: str, batch: TrainingBatch, samples: Sequence[TrainingSample]
) -> dict[str, float]:
    """Over trainable tokens; none where there are none."""
    sampled = [np.asarray(sample.versions)[np.asarray(sample.loss_mask) == 1] for sample in samples]
    lags = batch.version - np.concatenate(sampled) if sampled else np.zeros(0)
    if not lags.size:
        return {}
    return {f"{name}_mean": float(lags.mean()), f"{name}_max": float(lags.max())}
