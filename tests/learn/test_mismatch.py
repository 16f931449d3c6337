import math

import pytest
import torch

from colocate.learn.mismatch import mismatch_metrics, mismatch_totals


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
