"""Mismatch of a step, against the formulas written out token by token in float64."""

import math
import random

import pytest
import torch

from colocate.learn.metrics import Totals
from colocate.learn.mismatch import mismatch_metrics, mismatch_totals


def found(trainer, engine, same, *, parts: int = 1) -> dict[str, float]:
    """Over micro-batches, as ``train_step`` adds them up."""
    totals = Totals()
    for columns in zip(*(t.chunk(parts) for t in (trainer, engine, same)), strict=True):
        totals.add(*mismatch_totals(*columns))
    return mismatch_metrics(totals.reduced(lambda values: None, lambda values: None))


def written(pairs: list[tuple[float, float]]) -> dict[str, float]:
    gaps = [trainer - engine for trainer, engine in pairs]
    ratios = [math.exp(gap) for gap in gaps]
    count = len(pairs)
    return {
        "mismatch_num_tokens": count,
        "mismatch_mean_abs_logprob_diff": math.fsum(map(abs, gaps)) / count,
        "mismatch_max_abs_logprob_diff": max(map(abs, gaps)),
        "mismatch_k3_kl": math.fsum(math.expm1(gap) - gap for gap in gaps) / count,
        "mismatch_ess": math.fsum(ratios) ** 2 / (count * math.fsum(r * r for r in ratios)),
        "mismatch_ratio_mean": math.fsum(ratios) / count,
        "mismatch_ratio_min": min(ratios),
        "mismatch_ratio_max": max(ratios),
        "mismatch_trainer_perplexity": math.exp(-math.fsum(t for t, _ in pairs) / count),
        "mismatch_engine_perplexity": math.exp(-math.fsum(e for _, e in pairs) / count),
    }


@pytest.mark.parametrize("spread", [1e-6, 0.01, 2.0])
@pytest.mark.parametrize("parts", [1, 4])
def test_figures_are_those_of_the_tokens_that_the_steps_own_weights_sampled(spread, parts):
    draw = random.Random(1)
    engine = [draw.uniform(-8.0, -0.01) for _ in range(60)]
    trainer = [value + draw.gauss(0.0, spread) for value in engine]
    # All of the first part, and none of the last, so that some micro-batches have none.
    same = [index < 15 or (index < 45 and draw.random() < 0.5) for index in range(60)]
    metrics = found(
        torch.tensor(trainer, dtype=torch.float64),
        torch.tensor(engine, dtype=torch.float64),
        torch.tensor(same),
        parts=parts,
    )
    chosen = [
        pair for pair, kept in zip(zip(trainer, engine, strict=True), same, strict=True) if kept
    ]
    assert metrics == pytest.approx(written(chosen), rel=1e-9, abs=1e-15)


def test_engines_that_agree_have_no_mismatch_at_all():
    logprobs = torch.tensor([-0.5, -3.0, -1.25])
    metrics = found(logprobs, logprobs.clone(), torch.ones(3, dtype=torch.bool))
    assert metrics["mismatch_mean_abs_logprob_diff"] == metrics["mismatch_k3_kl"] == 0
    assert metrics["mismatch_ess"] == metrics["mismatch_ratio_min"] == 1
    assert metrics["mismatch_trainer_perplexity"] == metrics["mismatch_engine_perplexity"]


def test_without_a_token_of_the_steps_weights_there_is_no_mismatch():
    assert found(torch.zeros(2), torch.ones(2), torch.tensor([False, False])) == {}
