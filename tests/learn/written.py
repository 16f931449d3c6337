"""The loss of a mini-batch written out token by token in float64, sharing no code with the product.

Held against it: ``PolicyLoss`` with its aggregation (``found_loss``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from colocate.config import AlgorithmConfig, KlConfig
from colocate.learn.batches import MicroBatch, Minibatch
from colocate.learn.losses import PolicyLoss, Scores, TokenLoss

HOLD = 20.0
"""Log-ratios are held within it in exponentials."""


@dataclass
class Trajectory:
    """The sampled tokens of one trajectory; each tensor is float64 (T,)."""

    current: Tensor
    proximal: Tensor
    behaviour: Tensor
    reference: Tensor
    entropy: Tensor
    advantage: float


def written_kl(policy: Tensor, reference: Tensor, kl: KlConfig) -> Tensor:
    """Of one token."""
    if kl.estimator == "k1":
        return policy - reference
    if kl.estimator == "k2":
        return 0.5 * (policy - reference) ** 2
    held = torch.clamp(reference - policy, -HOLD, HOLD)
    return torch.exp(held) - 1 - (reference - policy)


def written_loss(trajectories: Sequence[Trajectory], algorithm: AlgorithmConfig) -> Tensor:
    """The loss of the mini-batch that these trajectories make up."""
    correction = algorithm.correction
    num_tokens = sum(len(each.current) for each in trajectories)
    num_sequences = len(trajectories)
    loss = torch.zeros((), dtype=torch.float64)
    for each in trajectories:
        length = len(each.current)
        anchor = each.behaviour if correction.objective == "plain" else each.proximal
        judged = each.current.detach() if correction.objective == "plain" else each.proximal
        off = [float(judged[t]) - float(each.behaviour[t]) for t in range(length)]
        geometric_mean = math.exp(sum(off) / length)
        if correction.band_low is not None and geometric_mean < correction.band_low:
            continue
        if correction.band_high is not None and geometric_mean > correction.band_high:
            continue
        if correction.veto is not None and any(math.exp(d) < correction.veto for d in off):
            continue
        whole = sum((each.current[t] - anchor[t] for t in range(length)), torch.zeros(()))
        for t in range(length):
            log_weight = {"token": off[t], "sequence": sum(off), "geometric": sum(off) / length}
            weight = math.exp(log_weight[correction.level])
            if correction.mode == "mask":
                if weight > correction.cap:
                    continue
                if correction.floor is not None and weight < correction.floor:
                    continue
            if correction.mode == "truncate":
                weight = min(weight, correction.cap)
            if correction.mode == "none":
                weight = 1.0
            if correction.objective == "plain" and algorithm.surrogate != "reinforce":
                weight = 1.0

            log_ratio = each.current[t] - anchor[t]
            if algorithm.ratio == "sequence":
                log_ratio = whole / length
            ratio = torch.exp(torch.clamp(log_ratio, -HOLD, HOLD))
            gain = -weight * written_surrogate(ratio, each.current[t], each.advantage, algorithm)
            gain = gain - algorithm.entropy_coef * each.entropy[t]
            if algorithm.kl.placement == "loss":
                gain = gain + algorithm.kl.coef * written_kl(
                    each.current[t], each.reference[t], algorithm.kl
                )
            if algorithm.aggregation == "token_mean":
                loss = loss + gain / num_tokens
            elif algorithm.aggregation == "sequence_mean":
                loss = loss + gain / (num_sequences * length)
            else:
                loss = loss + gain / (num_sequences * algorithm.length_budget)
    return loss


def written_surrogate(
    ratio: Tensor, current: Tensor, advantage: float, algorithm: AlgorithmConfig
) -> Tensor:
    """Of one token."""
    low, high = 1 - algorithm.clip_low, 1 + algorithm.clip_high
    if algorithm.surrogate == "reinforce":
        return advantage * current
    if algorithm.surrogate == "cispo":
        return min(max(float(ratio.detach()), low), high) * advantage * current
    candidates = [ratio * advantage, torch.clamp(ratio, low, high) * advantage]
    kept = min(candidates, key=lambda each: float(each.detach()))
    if algorithm.dual_clip is not None and advantage < 0:
        floor = torch.tensor(algorithm.dual_clip * advantage, dtype=torch.float64)
        kept = max([kept, floor], key=lambda each: float(each.detach()))
    return kept


def found_terms(
    trajectories: Sequence[Trajectory], algorithm: AlgorithmConfig
) -> tuple[TokenLoss, MicroBatch]:
    """What the product makes of the same trajectories, in one micro-batch."""
    micro_batch = micro_batch_of(trajectories)

    def joined(name: str) -> Tensor:
        return torch.cat([getattr(each, name) for each in trajectories])

    terms = PolicyLoss.of(algorithm)(
        Scores(
            current=joined("current"),
            proximal=joined("proximal"),
            behaviour=joined("behaviour"),
            entropy=joined("entropy"),
            reference=joined("reference") if algorithm.kl.coef else None,
        ),
        micro_batch.advantages,
        micro_batch.sequences,
    )
    return terms, micro_batch


def found_loss(trajectories: Sequence[Trajectory], algorithm: AlgorithmConfig) -> Tensor:
    terms, micro_batch = found_terms(trajectories, algorithm)
    aggregation = PolicyLoss.of(algorithm).aggregation
    whole = Minibatch(
        num_tokens=len(micro_batch.weights), num_sequences=len(trajectories), ranks=()
    )
    weighted = terms.loss * aggregation.weights(micro_batch)
    return weighted.sum() / aggregation.denominator(whole)


def micro_batch_of(trajectories: Sequence[Trajectory]) -> MicroBatch:
    counts = torch.tensor([len(each.current) for each in trajectories])
    index = torch.repeat_interleave(torch.arange(len(trajectories)), counts)
    advantages = torch.tensor([each.advantage for each in trajectories], dtype=torch.float64)
    unread = torch.zeros_like(index)
    return MicroBatch(
        token_ids=unread[None],
        batch_index=index,
        positions=unread,
        targets=unread,
        behaviour_logprobs=torch.cat([each.behaviour for each in trajectories]),
        versions=unread,
        advantages=advantages[index],
        weights=torch.ones(len(index), dtype=torch.float64),
        sequence_index=index,
        sequence_tokens=counts,
    )


def make_trajectories(
    *, seed: int, spread: float, lengths: Sequence[int] = (1, 7, 3, 12, 5)
) -> list[Trajectory]:
    """Ragged trajectories whose policies are about ``spread`` nats a token apart.

    ``current`` and ``entropy`` ask for gradients.
    """
    generator = torch.Generator().manual_seed(seed)

    def noise(length: int, scale: float) -> Tensor:
        return scale * torch.randn(length, generator=generator, dtype=torch.float64)

    trajectories = []
    for length in lengths:
        proximal = -1.5 + noise(length, 0.5)
        # Sequences as a whole drift too, as sums of independent noise hardly do.
        current = proximal + noise(length, spread) + noise(1, spread)
        behaviour = proximal + noise(length, spread) + noise(1, spread)
        trajectories.append(
            Trajectory(
                current=current.requires_grad_(),
                proximal=proximal,
                behaviour=behaviour,
                reference=proximal + noise(length, spread),
                entropy=noise(length, 1.0).abs().requires_grad_(),
                advantage=float(noise(1, 1.0)),
            )
        )
    return trajectories


def gradients(
    loss: Tensor, trajectories: Sequence[Trajectory], *, entropy: bool
) -> tuple[Tensor, ...]:
    """Of each trajectory's log-probabilities, and of its entropies; zero where nothing depends."""
    leaves = [each.current for each in trajectories]
    if entropy:
        leaves += [each.entropy for each in trajectories]
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return tuple(
        torch.zeros_like(leaf) if gradient is None else gradient
        for leaf, gradient in zip(leaves, found, strict=True)
    )


def assert_is_the_written_formula(
    trajectories: Sequence[Trajectory], algorithm: AlgorithmConfig
) -> None:
    """Value and gradient agree to a relative error far below 1e-6."""
    expected = written_loss(trajectories, algorithm)
    found = found_loss(trajectories, algorithm)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-13)
    if not expected.requires_grad:
        # Nothing but rejected tokens.
        assert float(expected) == 0.0
        expected = expected + 0 * sum(each.current.sum() for each in trajectories)
    with_entropy = algorithm.entropy_coef > 0
    torch.testing.assert_close(
        gradients(found, trajectories, entropy=with_entropy),
        gradients(expected, trajectories, entropy=with_entropy),
        rtol=1e-9,
        atol=1e-13,
    )
