"""The loss and its gradient against the formula written out token by token in float64."""

import math

import pytest
import torch

from colocate.config import AlgorithmConfig, CorrectionConfig
from colocate.learn.correction import importance_weights
from colocate.learn.losses import token_loss
from colocate.learn.mismatch import mismatch_metrics, mismatch_totals

NUM_TOKENS = 200


def algorithm(**changes) -> AlgorithmConfig:
    return AlgorithmConfig(group_size=4, groups_per_step=2, **changes)


@pytest.fixture
def policies() -> dict[str, torch.Tensor]:
    """Log-probabilities of four policies far enough apart that each branch is taken."""
    generator = torch.Generator().manual_seed(0)

    def noise(scale: float) -> torch.Tensor:
        return scale * torch.randn(NUM_TOKENS, generator=generator, dtype=torch.float64)

    proximal = -1.5 + noise(0.3)
    return {
        "proximal": proximal,
        "current": proximal + noise(0.4),
        "behaviour": proximal + noise(0.8),
        "reference": proximal + noise(0.5),
        "advantages": noise(1.0),
        "entropy": noise(0.2).abs(),
    }


def one_tokens_loss(token, cur, prox, beh, ref, adv, ent, config):
    """The formula of the docstring, for one token, with no shared code."""
    ratio = torch.exp(cur - prox)
    kept = min(
        ratio * adv,
        torch.clamp(ratio, 1 - config.clip_low, 1 + config.clip_high) * adv,
        key=torch.Tensor.item,
    )
    weight = 1.0
    if config.correction.mode == "truncate":
        weight = min(math.exp(prox - beh), config.correction.cap)
    loss = -weight * kept - config.entropy_coef * ent
    if config.kl_coef:
        loss = loss + config.kl_coef * (torch.exp(ref - cur) - 1 - (ref - cur))
    return loss


@pytest.mark.parametrize(
    "config",
    [
        algorithm(),
        algorithm(clip_low=0.1, clip_high=0.5, entropy_coef=0.3),
        algorithm(kl_coef=0.7, correction=CorrectionConfig(mode="none")),
        algorithm(entropy_coef=0.02, kl_coef=0.1, correction=CorrectionConfig(cap=1.2)),
    ],
    ids=["plain", "entropy", "kl", "all"],
)
def test_loss_and_gradient_are_those_of_the_written_formula(policies, config):
    current = policies["current"].clone().requires_grad_()
    entropy = policies["entropy"].clone().requires_grad_()
    expected = torch.stack(
        [
            one_tokens_loss(
                i,
                current[i],
                policies["proximal"][i],
                policies["behaviour"][i],
                policies["reference"][i],
                policies["advantages"][i],
                entropy[i],
                config,
            )
            for i in range(NUM_TOKENS)
        ]
    )
    inputs = (current, entropy) if config.entropy_coef else (current,)
    expected_gradient = torch.autograd.grad(expected.sum(), inputs)

    terms = token_loss(
        current=current,
        proximal=policies["proximal"],
        behaviour=policies["behaviour"],
        advantages=policies["advantages"],
        entropy=entropy,
        reference=policies["reference"] if config.kl_coef else None,
        algorithm=config,
    )
    gradient = torch.autograd.grad(terms.loss.sum(), inputs)
    torch.testing.assert_close(terms.loss, expected, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-12)


def test_a_clipped_token_bears_no_policy_gradient_and_is_counted_on_its_side():
    ratio = torch.tensor([0.5, 0.5, 1.5, 1.5, 1.0])
    advantages = torch.tensor([1.0, -1.0, 1.0, -1.0, 1.0])
    current = ratio.log().requires_grad_()
    terms = token_loss(
        current=current,
        proximal=torch.zeros(5),
        behaviour=torch.zeros(5),
        advantages=advantages,
        entropy=torch.zeros(5),
        reference=None,
        algorithm=algorithm(),
    )
    (gradient,) = torch.autograd.grad(terms.loss.sum(), current)
    assert terms.clipped_low.tolist() == [False, True, False, False, False]
    assert terms.clipped_high.tolist() == [False, False, True, False, False]
    assert (gradient == 0).tolist() == [False, True, True, False, False]


def test_importance_weights_are_cut_at_the_cap_and_only_there():
    proximal = torch.log(torch.tensor([0.1, 0.5, 0.9]))
    behaviour = torch.log(torch.tensor([0.2, 0.5, 0.3]))
    weights, truncated = importance_weights(proximal, behaviour, CorrectionConfig(cap=2.0))
    assert weights.tolist() == pytest.approx([0.5, 1.0, 2.0])
    assert truncated.tolist() == [False, False, True]


def test_a_hopeless_log_ratio_overflows_nothing():
    far = torch.tensor([300.0, -300.0]).requires_grad_()
    terms = token_loss(
        current=far,
        proximal=torch.zeros(2),
        behaviour=torch.tensor([-300.0, 300.0]),
        advantages=torch.tensor([0.0, -1.0]),
        entropy=torch.zeros(2),
        reference=torch.zeros(2),
        algorithm=algorithm(kl_coef=0.1),
    )
    assert torch.isfinite(terms.loss).all()


def test_mismatch_is_read_only_from_tokens_that_the_steps_own_weights_sampled():
    trainer = torch.tensor([-1.0, -2.0, -3.0], dtype=torch.float64)
    engine = torch.tensor([-1.1, -2.0, -9.0], dtype=torch.float64)
    same = torch.tensor([True, True, False])
    sums, maxima = mismatch_totals(trainer, engine, same)
    found = mismatch_metrics({k: float(v) for k, v in (sums | maxima).items()})
    ratios = [math.exp(0.1), 1.0]
    assert found == pytest.approx(
        {
            "mismatch_mean_abs_logprob_diff": 0.05,
            "mismatch_max_abs_logprob_diff": 0.1,
            "mismatch_k3_kl": (ratios[0] - 1 - 0.1) / 2,
            "mismatch_ess": sum(ratios) ** 2 / (2 * sum(r * r for r in ratios)),
            "mismatch_ratio_min": 1.0,
            "mismatch_ratio_max": ratios[0],
        }
    )


def test_without_a_token_of_the_steps_weights_there_is_no_mismatch():
    sums, maxima = mismatch_totals(torch.zeros(2), torch.ones(2), torch.tensor([False, False]))
    assert mismatch_metrics({k: float(v) for k, v in (sums | maxima).items()}) == {}
