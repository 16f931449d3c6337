"""One training step of one rank: from a leased batch to new weights.

All ranks run it on the same batch. Each decides alike, from the batch alone, what would be
refused and how many forward passes there are, before the first collective.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from colocate.adapters.deepspeed.engine import TrainingEngine
from colocate.config import AlgorithmConfig, TrainerConfig
from colocate.learn.advantages import compute_advantages
from colocate.learn.batches import (
    MicroBatch,
    MicroBatchRows,
    Minibatch,
    Row,
    collate,
    make_rows,
    plan_minibatches,
    with_advantages,
)
from colocate.learn.kl import sequence_penalties
from colocate.learn.losses import PolicyLoss, Scores
from colocate.learn.metrics import Totals, batch_metrics, loss_metrics, loss_totals
from colocate.learn.mismatch import mismatch_totals
from colocate.learn.overlong import overlong_penalties
from colocate.learn.schedule import learning_rate
from colocate.learn.scoring import Scorer
from colocate.ports import TrainingBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSettings:
    """What does not change from step to step. ``rank`` is this one's number."""

    trainer: TrainerConfig
    algorithm: AlgorithmConfig
    steps: int
    seed: int
    rank: int
    device: torch.device


@dataclass(slots=True)
class _Scored:
    """A micro-batch with the log-probabilities that stay fixed during the step, each (N,).

    ``proximal`` is None where the first forward pass of the step is still to tell.
    """

    rows: MicroBatchRows
    micro_batch: MicroBatch
    proximal: Tensor | None
    reference: Tensor | None


@dataclass(frozen=True, slots=True)
class AdmittedBatch:
    """A batch that may be trained: it is of the trainer's version and has trainable tokens.

    ``advantages``, one for each sample, are of its rewards less ``penalties``, which its length
    alone brings; None where rewards are not shaped.
    """

    batch: TrainingBatch
    rows: list[Row]
    advantages: list[float]
    penalties: list[float] | None


def admit(batch: TrainingBatch, *, version: int, algorithm: AlgorithmConfig) -> AdmittedBatch:
    """Checks a batch and computes its advantages, without a collective.

    Raises:
        ValueError: the batch is of another version than the trainer, holds no trainable token,
            or is malformed. Every rank finds so alike.
    """
    if batch.version != version:
        raise ValueError(
            f"batch {batch.batch} begins at version {batch.version}, but the trainer is at "
            f"version {version}; lease it again"
        )
    penalties = overlong_penalties(batch.samples, algorithm.overlong)
    advantages = compute_advantages(batch.samples, algorithm, penalties=penalties)
    rows = make_rows(batch.samples, advantages)
    if not rows:
        raise ValueError(
            f"batch {batch.batch} has no trainable token: each of its {len(batch.samples)} "
            f"trajectories is masked or sampled nothing; do not lease such a batch"
        )
    return AdmittedBatch(batch, rows, advantages, penalties)


def train_step(
    engine: TrainingEngine,
    reference: Scorer | None,
    admitted: AdmittedBatch,
    *,
    settings: StepSettings,
) -> dict[str, float]:
    """Takes the step and returns its metrics. All ranks must call it together.

    Raises:
        FloatingPointError: a gradient was not finite. The weights are spoilt.
    """
    started = time.monotonic()
    trainer, rows, version = settings.trainer, admitted.rows, admitted.batch.version
    loss = PolicyLoss.of(settings.algorithm)
    plan = plan_minibatches(
        rows,
        num_minibatches=trainer.num_minibatches,
        num_ranks=trainer.num_ranks,
        micro_batch_tokens=trainer.micro_batch_tokens,
        seed=settings.seed + version,
        packed=engine.packed,
    )
    shares = _score_plan(engine, reference, rows, plan, settings)
    advantages, penalty_metrics = admitted.advantages, dict[str, float]()
    if admitted.penalties is not None:
        penalty_metrics["overlong_penalty_mean"] = float(
            np.mean([admitted.penalties[row.sample] for row in rows])
        )
    if settings.algorithm.kl.off_the_reward:
        advantages, kl_metrics = _penalise(admitted, shares, settings)
        penalty_metrics |= kl_metrics
    totals = Totals()
    rate = learning_rate(trainer, step=version, steps=settings.steps)
    norms = []
    for minibatch, share in zip(plan, shares, strict=True):
        _accumulate_gradient(engine, loss, minibatch, share, version, settings, totals)
        norms.append(engine.step(rate))

    metrics = loss_metrics(
        totals.reduced(_add_over_ranks, _max_over_ranks),
        denominator=sum(loss.aggregation.denominator(minibatch) for minibatch in plan),
    )
    duration_s = time.monotonic() - started
    return {
        **metrics,
        **batch_metrics(admitted.batch, advantages),
        **penalty_metrics,
        "learning_rate": rate,
        "grad_norm": sum(norms) / len(norms),
        "grad_norm_max": max(norms),
        "optimizer_steps": float(len(norms)),
        "micro_batches": float(sum(len(minibatch.ranks[0]) for minibatch in plan)),
        "duration_s": duration_s,
        "tokens_per_s": sum(row.length for row in rows) / duration_s,
    }


def _score_plan(
    engine: TrainingEngine,
    reference: Scorer | None,
    rows: Sequence[Row],
    plan: Sequence[Minibatch],
    settings: StepSettings,
) -> list[list[_Scored]]:
    """Log-probabilities by the weights the step begins with: the proximal policy's.

    The first mini-batch is spared its pass: its own forward pass runs under these very weights.
    Not so where the KL penalty is part of the rewards, and so has to be known before any gradient.
    """
    spared = 0 if settings.algorithm.kl.off_the_reward else 1
    scored = []
    for index, minibatch in enumerate(plan):
        share = []
        for chosen in minibatch.ranks[settings.rank]:
            micro_batch = collate(
                [rows[row] for row in chosen], device=settings.device, packed=engine.packed
            )
            with torch.no_grad():
                known = index >= spared
                proximal = engine.score(micro_batch, with_entropy=False)[0] if known else None
                anchor = reference(micro_batch, with_entropy=False)[0] if reference else None
            share.append(_Scored(chosen, micro_batch, proximal, anchor))
        scored.append(share)
    return scored


def _penalise(
    admitted: AdmittedBatch, shares: Sequence[Sequence[_Scored]], settings: StepSettings
) -> tuple[list[float], dict[str, float]]:
    """Takes the KL penalty off the rewards too; micro-batches get the advantages of what is left.

    Each rank knows the penalties of its own rows; all ranks learn those of the whole batch.
    """
    algorithm, samples = settings.algorithm, admitted.batch.samples
    own = [item for share in shares for item in share if item.rows]
    of_rows = torch.zeros(len(admitted.rows), dtype=torch.float64, device=settings.device)
    for item in own:
        assert item.proximal is not None
        assert item.reference is not None
        of_rows[list(item.rows)] = sequence_penalties(
            item.proximal, item.reference, item.micro_batch.sequences, algorithm.kl
        )
    _add_over_ranks(of_rows)

    penalties = np.array(admitted.penalties or [0.0] * len(samples))
    penalties[[row.sample for row in admitted.rows]] += of_rows.cpu().numpy()
    advantages = compute_advantages(samples, algorithm, penalties=penalties.tolist())
    for item in own:
        item.micro_batch = with_advantages(
            item.micro_batch, [advantages[admitted.rows[row].sample] for row in item.rows]
        )
    return advantages, {"kl_penalty_mean": float(of_rows.mean())}


def _accumulate_gradient(
    engine: TrainingEngine,
    policy_loss: PolicyLoss,
    minibatch: Minibatch,
    share: Sequence[_Scored],
    version: int,
    settings: StepSettings,
    totals: Totals,
) -> None:
    """Leaves the gradient of the loss of the whole mini-batch, all ranks', in the engine.

    Each micro-batch's weighted sum is divided by the denominator of the whole mini-batch, and
    multiplied by the number of ranks, over which DeepSpeed takes the mean.
    """
    algorithm, aggregation = settings.algorithm, policy_loss.aggregation
    scale = settings.trainer.num_ranks / aggregation.denominator(minibatch)
    for index, item in enumerate(share):
        micro_batch = item.micro_batch
        current, entropy = engine.score(
            micro_batch, with_entropy=True, entropy_grad=algorithm.entropy_coef != 0
        )
        assert entropy is not None
        proximal = current.detach() if item.proximal is None else item.proximal
        terms = policy_loss(
            Scores(
                current=current,
                proximal=proximal,
                behaviour=micro_batch.behaviour_logprobs,
                entropy=entropy,
                reference=item.reference,
            ),
            micro_batch.advantages,
            micro_batch.sequences,
        )
        weights = aggregation.weights(micro_batch)
        engine.backward((terms.loss * weights).sum() * scale, last=index == len(share) - 1)
        totals.add(*loss_totals(terms, entropy, micro_batch, weights))
        totals.add(
            *mismatch_totals(
                proximal, micro_batch.behaviour_logprobs, micro_batch.versions == version
            )
        )


def _add_over_ranks(values: Tensor) -> None:
    torch.distributed.all_reduce(values, op=torch.distributed.ReduceOp.SUM)


def _max_over_ranks(values: Tensor) -> None:
    torch.distributed.all_reduce(values, op=torch.distributed.ReduceOp.MAX)
