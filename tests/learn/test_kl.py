import math

import pytest
import torch

from colocate.config import KlConfig
from colocate.learn.kl import kl_estimate, sequence_penalties
from colocate.learn.sequences import Sequences


def distributions() -> tuple[torch.Tensor, torch.Tensor, float]:
    """Log-probabilities of two policies over five outcomes, and their exact KL divergence."""
    generator = torch.Generator().manual_seed(0)
    policy, reference = torch.log_softmax(
        torch.randn(2, 5, generator=generator, dtype=torch.float64), dim=-1
    )
    return policy, reference, float((policy.exp() * (policy - reference)).sum())


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_k1_and_k3_are_the_divergence_on_average_over_the_policys_own_samples(estimator):
    policy, reference, exact = distributions()
    estimates = kl_estimate(policy, reference, KlConfig(estimator=estimator))
    assert float((policy.exp() * estimates).sum()) == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize(
    ("estimator", "of"), [("k1", "nothing"), ("k2", "KL(p|q)"), ("k3", "KL(q|p)")]
)
def test_in_the_loss_the_mean_gradient_is_that_of_what_the_docstring_says(estimator, of):
    logits = torch.randn(5, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    logits.requires_grad_()
    policy = torch.log_softmax(logits, dim=-1)
    _, reference, _ = distributions()
    estimates = kl_estimate(policy, reference, KlConfig(estimator=estimator))
    # Samples come from the policy, but the sampling itself is not differentiated.
    (found,) = torch.autograd.grad(
        (policy.exp().detach() * estimates).sum(), logits, retain_graph=True
    )
    exact = {
        "nothing": 0 * policy.sum(),
        "KL(p|q)": (policy.exp() * (policy - reference)).sum(),
        "KL(q|p)": (reference.exp() * (reference - policy)).sum(),
    }[of]
    (expected,) = torch.autograd.grad(exact, logits)
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_equal_policies_have_no_divergence(estimator):
    same = torch.tensor([-0.1, -5.0])
    assert kl_estimate(same, same.clone(), KlConfig(estimator=estimator)).tolist() == [0, 0]


def test_k3_of_policies_that_nearly_agree_is_not_lost_to_rounding_in_float32():
    policy = torch.tensor([-1.0])
    reference = policy + 2.0**-12
    d = float(reference - policy)
    found = kl_estimate(policy, reference, KlConfig(estimator="k3"))
    assert float(found) == pytest.approx(math.expm1(d) - d, rel=1e-3)


def test_a_penalty_is_the_sum_over_a_sequence_times_the_coefficient_and_bears_no_gradient():
    policy = torch.tensor([-1.0, -2.0, -3.0], requires_grad=True)
    reference = torch.tensor([-1.5, -2.0, -2.0])
    sequences = Sequences(torch.tensor([0, 0, 1]), torch.tensor([2, 1]))
    found = sequence_penalties(
        policy, reference, sequences, KlConfig(coef=0.5, estimator="k1", placement="reward")
    )
    assert found.tolist() == pytest.approx([0.25, -0.5])
    assert found.dtype == torch.float64
    assert not found.requires_grad
