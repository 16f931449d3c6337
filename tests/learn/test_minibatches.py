"""From trajectories to the gradient of one optimizer step: however they are ordered and split."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from colocate.config import AlgorithmConfig, CorrectionConfig, KlConfig
from colocate.learn.advantages import compute_advantages
from colocate.learn.batches import (
    MicroBatch,
    MicroBatchRows,
    collate,
    make_rows,
    plan_minibatches,
    with_advantages,
)
from colocate.learn.kl import sequence_penalties
from colocate.learn.losses import PolicyLoss, Scores
from colocate.ports import TrainingSample
from tests.learn.shipped import SHIPPED, shipped
from tests.learn.written import Trajectory, written_kl, written_loss

CPU = torch.device("cpu")
VOCABULARY = 7
GENERATOR = torch.Generator().manual_seed(0)


def table(scale: float) -> Tensor:
    return scale * torch.randn(VOCABULARY, VOCABULARY, generator=GENERATOR, dtype=torch.float64)


# A policy here is a table of logits: what may come after each token.
PROXIMAL = table(1.0)
CURRENT = PROXIMAL + table(0.3)
REFERENCE = PROXIMAL + table(0.5)

OTHERS = {
    "kl in the loss": {"kl": KlConfig(coef=0.2), "entropy_coef": 0.1},
    "kl off the reward": {"kl": KlConfig(coef=0.2, estimator="k1", placement="reward")},
    "kl off the reward, sequence ratio": {
        "ratio": "sequence",
        "advantage": "leave_one_out",
        "kl": KlConfig(coef=0.1, estimator="k3", placement="reward"),
    },
    "masked tokens": {"correction": CorrectionConfig(mode="mask", cap=1.3, floor=0.7)},
    "rejected sequences": {
        "correction": CorrectionConfig(
            objective="plain", mode="none", band_low=0.8, band_high=1.3, veto=0.3
        ),
        "aggregation": "token_mean",
        "entropy_coef": 0.1,
    },
}
ALGORITHMS = {name: shipped(name) for name in SHIPPED} | {
    name: AlgorithmConfig(group_size=4, groups_per_step=3, **fields)
    for name, fields in OTHERS.items()
}


def make_samples(seed: int, *, groups: int = 3, size: int = 4) -> list[TrainingSample]:
    """Ragged trajectories of one to three turns; one is masked, one has sampled nothing."""
    draw = random.Random(seed)
    samples = []
    for place in range(groups * size):
        ids, mask = [draw.randrange(VOCABULARY) for _ in range(draw.randint(1, 3))], []
        mask += [0] * len(ids)
        for _ in range(draw.randint(1, 3)):
            for mark, count in ((1, draw.randint(1, 4)), (0, draw.randint(0, 3))):
                ids += [draw.randrange(VOCABULARY) for _ in range(count)]
                mask += [mark] * count
        if place == 5:
            mask = [0] * len(ids)
        samples.append(
            TrainingSample(
                trajectory=place,
                group=place // size,
                token_ids=ids,
                loss_mask=mask,
                logprobs=[
                    mark * sampled_with(ids[t - 1], ids[t], draw) for t, mark in enumerate(mask)
                ],
                versions=[mark - 1 for mark in mask],
                reward=draw.randint(0, 8) / 8,
                masked=place == 2,
            )
        )
    return samples


def sampled_with(before: int, token: int, draw: random.Random) -> float:
    """A behaviour policy not far from the proximal one; exact in float32, as batches carry it."""
    logprob = float(torch.log_softmax(PROXIMAL[before], dim=-1)[token]) + draw.gauss(0, 0.4)
    return round(64 * logprob) / 64


def token_scores(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    logprobs = torch.log_softmax(logits, dim=-1)
    chosen = logprobs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    return chosen, -(logprobs.exp() * logprobs).sum(dim=-1)


def scores_of(policy: Tensor, batch: MicroBatch) -> tuple[Tensor, Tensor]:
    before = batch.token_ids[batch.batch_index, batch.positions]
    return token_scores(policy[before], batch.targets)


def padded(batch: MicroBatch, columns: int) -> MicroBatch:
    return replace(batch, token_ids=torch.nn.functional.pad(batch.token_ids, (0, columns)))


def found_gradient(
    samples: Sequence[TrainingSample],
    algorithm: AlgorithmConfig,
    *,
    num_ranks: int = 1,
    micro_batch_tokens: int = 10**6,
    padding: int = 0,
    packed: bool = False,
) -> Tensor:
    """Of one optimizer step, as ranks with micro-batches take it together."""
    rows = make_rows(samples, compute_advantages(samples, algorithm))
    (minibatch,) = plan_minibatches(
        rows,
        num_minibatches=1,
        num_ranks=num_ranks,
        micro_batch_tokens=micro_batch_tokens,
        seed=0,
        packed=packed,
    )

    def tensors(chosen: MicroBatchRows) -> MicroBatch:
        batch = collate([rows[i] for i in chosen], device=CPU, packed=packed)
        return batch if packed else padded(batch, padding)

    shares = [[(chosen, tensors(chosen)) for chosen in of] for of in minibatch.ranks]
    if algorithm.kl.off_the_reward:
        penalties = [0.0] * len(samples)
        for chosen, batch in (item for share in shares for item in share if item[0]):
            proximal, reference = (scores_of(p, batch)[0] for p in (PROXIMAL, REFERENCE))
            found = sequence_penalties(proximal, reference, batch.sequences, algorithm.kl)
            for row, penalty in zip(chosen, found.tolist(), strict=True):
                penalties[rows[row].sample] = penalty
        advantages = compute_advantages(samples, algorithm, penalties=penalties)
        shares = [
            [
                (c, with_advantages(b, [advantages[rows[i].sample] for i in c]) if c else b)
                for c, b in share
            ]
            for share in shares
        ]

    policy = CURRENT.clone().requires_grad_()
    policy_loss = PolicyLoss.of(algorithm)
    of_ranks = []
    for share in shares:
        scale = num_ranks / policy_loss.aggregation.denominator(minibatch)
        loss = torch.zeros((), dtype=torch.float64)
        for _, batch in share:
            current, entropy = scores_of(policy, batch)
            scores = Scores(
                current=current,
                proximal=scores_of(PROXIMAL, batch)[0],
                behaviour=batch.behaviour_logprobs,
                entropy=entropy,
                reference=scores_of(REFERENCE, batch)[0] if algorithm.kl.coef else None,
            )
            terms = policy_loss(scores, batch.advantages, batch.sequences)
            loss = loss + (terms.loss * policy_loss.aggregation.weights(batch)).sum() * scale
        of_ranks.append(torch.autograd.grad(loss, policy)[0])
    return torch.stack(of_ranks).mean(dim=0)


def written_gradient(samples: Sequence[TrainingSample], algorithm: AlgorithmConfig) -> Tensor:
    """By the written formula, trajectory by trajectory."""
    policy = CURRENT.clone().requires_grad_()
    trained, penalties = {}, [0.0] * len(samples)
    for place, sample in enumerate(samples):
        sampled = [t for t, mark in enumerate(sample.loss_mask) if mark]
        if sample.masked or not sampled:
            continue
        before = torch.tensor([sample.token_ids[t - 1] for t in sampled])
        targets = torch.tensor([sample.token_ids[t] for t in sampled])
        current, entropy = token_scores(policy[before], targets)
        trained[place] = Trajectory(
            current=current,
            proximal=token_scores(PROXIMAL[before], targets)[0],
            behaviour=torch.tensor([sample.logprobs[t] for t in sampled], dtype=torch.float64),
            reference=token_scores(REFERENCE[before], targets)[0],
            entropy=entropy,
            advantage=0.0,
        )
        if algorithm.kl.placement == "reward":
            penalties[place] = algorithm.kl.coef * sum(
                float(written_kl(p, r, algorithm.kl))
                for p, r in zip(trained[place].proximal, trained[place].reference, strict=True)
            )
    less = [replace(s, reward=s.reward - p) for s, p in zip(samples, penalties, strict=True)]
    advantages = compute_advantages(less, algorithm)
    for place, trajectory in trained.items():
        trajectory.advantage = advantages[place]
    loss = written_loss(list(trained.values()), algorithm)
    return torch.autograd.grad(loss, policy)[0]


def assert_same(found: Tensor, expected: Tensor) -> None:
    """To rounding of float32, in which batches carry advantages."""
    assert float(expected.norm()) > 1e-3
    assert float((found - expected).norm()) <= 1e-6 * float(expected.norm())


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_the_gradient_of_a_step_is_that_of_the_written_formula(name, seed):
    samples = make_samples(seed)
    assert_same(
        found_gradient(samples, ALGORITHMS[name]), written_gradient(samples, ALGORITHMS[name])
    )


@functools.cache
def whole_gradient(name: str) -> Tensor:
    """By one rank in one micro-batch."""
    return found_gradient(make_samples(seed=2), ALGORITHMS[name])


@given(
    name=st.sampled_from(sorted(ALGORITHMS)),
    num_ranks=st.integers(1, 5),
    micro_batch_tokens=st.sampled_from([1, 20, 40, 10**6]),
    padding=st.integers(0, 9),
    packed=st.booleans(),
    order=st.permutations(range(12)),
)
def test_order_padding_packing_micro_batches_and_ranks_change_nothing_but_rounding(
    name, num_ranks, micro_batch_tokens, padding, packed, order
):
    samples = make_samples(seed=2)
    found = found_gradient(
        [samples[place] for place in order],
        ALGORITHMS[name],
        num_ranks=num_ranks,
        micro_batch_tokens=micro_batch_tokens,
        padding=padding,
        packed=packed,
    )
    assert_same(found, whole_gradient(name))


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_masked_trajectory_moves_nothing_whatever_it_holds(name):
    samples = make_samples(seed=3)
    changed = list(samples)
    changed[2] = replace(
        samples[2],
        token_ids=[0, 1],
        loss_mask=[0, 1],
        logprobs=[0, -9.0],
        versions=[-1, 0],
        reward=9.0,
    )
    without = samples[:2] + samples[3:]
    whole = found_gradient(samples, ALGORITHMS[name])
    assert torch.equal(whole, found_gradient(changed, ALGORITHMS[name]))
    assert_same(found_gradient(without, ALGORITHMS[name]), whole)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"aggregation": "token_mean"}, 0.65),
        ({"aggregation": "sequence_mean"}, 1.25),
        ({"aggregation": "fixed_length", "length_budget": 1000}, 0.325),
        ({"aggregation": "fixed_length", "length_budget": 1}, 325.0),
    ],
)
@pytest.mark.parametrize("budget", [1, 10**6])
@pytest.mark.parametrize("num_ranks", [1, 2, 3])
def test_a_hundred_tokens_of_loss_2_and_nine_hundred_of_a_half(fields, expected, budget, num_ranks):
    """The token mean is 0.65; means of parts would give 1.25."""
    algorithm = AlgorithmConfig(group_size=2, groups_per_step=1, surrogate="reinforce", **fields)
    samples = [
        TrainingSample(
            trajectory=place,
            group=0,
            token_ids=[0] * (length + 1),
            loss_mask=[0] + [1] * length,
            logprobs=[0.0] + [-1.0] * length,
            versions=[-1] + [0] * length,
            reward=0.0,
        )
        for place, length in enumerate([100, 900])
    ]
    rows = make_rows(samples, [2.0, 0.5])
    (minibatch,) = plan_minibatches(
        rows, num_minibatches=1, num_ranks=num_ranks, micro_batch_tokens=budget, seed=0
    )
    policy_loss = PolicyLoss.of(algorithm)
    loss = 0.0
    for share in minibatch.ranks:
        for chosen in share:
            batch = collate([rows[i] for i in chosen], device=CPU)
            fixed = batch.behaviour_logprobs
            if not chosen:
                fixed = torch.full_like(fixed, -1.0)
            scores = Scores(current=fixed, proximal=fixed, behaviour=fixed, entropy=fixed)
            terms = policy_loss(scores, batch.advantages, batch.sequences)
            loss += float((terms.loss * policy_loss.aggregation.weights(batch)).sum())
    assert loss / policy_loss.aggregation.denominator(minibatch) == pytest.approx(expected)
