"""The mismatch of a run: sums over steps as over all tokens at once, and one warning."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.core import actions as act
from colocate.core.books import Books
from colocate.core.mismatch import MismatchBook
from colocate.core.settings import Settings
from colocate.core.types import Version
from tests.core.world import World

Pairs = list[tuple[float, float]]
"""Log-probabilities of sampled tokens by trainer and engine."""

TOKENS = st.lists(
    st.tuples(st.floats(-20.0, 0.0), st.floats(-3.0, 3.0)).map(lambda p: (p[0] + p[1], p[0])),
    min_size=1,
    max_size=20,
)


def written(tokens: Pairs) -> dict[str, float]:
    """The figures of these tokens, one token after another, in float64."""
    count = len(tokens)
    gaps = [trainer - engine for trainer, engine in tokens]
    ratios = [math.exp(gap) for gap in gaps]
    return {
        "mean_abs_logprob_diff": math.fsum(map(abs, gaps)) / count,
        "max_abs_logprob_diff": max(map(abs, gaps)),
        "k3_kl": math.fsum(math.expm1(gap) - gap for gap in gaps) / count,
        "ess": math.fsum(ratios) ** 2 / (count * math.fsum(r * r for r in ratios)),
        "ratio_mean": math.fsum(ratios) / count,
        "ratio_min": min(ratios),
        "ratio_max": max(ratios),
        "trainer_perplexity": math.exp(-math.fsum(t for t, _ in tokens) / count),
        "engine_perplexity": math.exp(-math.fsum(e for _, e in tokens) / count),
        "num_tokens": count,
    }


def metrics_of(tokens: Pairs) -> dict[str, float]:
    return {f"mismatch_{name}": value for name, value in written(tokens).items()}


def step_with(mean_abs: float) -> dict[str, float]:
    return metrics_of([(-1.0 - mean_abs, -1.0)])


@given(st.lists(TOKENS, min_size=1, max_size=6))
def test_a_run_of_steps_has_the_figures_of_all_its_tokens(steps: list[Pairs]) -> None:
    book = MismatchBook()
    for number, tokens in enumerate(steps, start=1):
        assert book.observe(metrics_of(tokens), Version(number)) is None
    found = book.summary()
    assert found.pop("num_steps") == len(steps)
    assert found.pop("warn_above") is None
    assert found == pytest.approx(written([t for step in steps for t in step]), rel=1e-9, abs=1e-12)


def test_a_step_of_stale_tokens_alone_says_nothing() -> None:
    book = MismatchBook(1e-9)
    assert book.observe({"loss": 1.0}, Version(1)) is None
    assert book.last_mean_abs is None
    figures = book.summary()
    assert (figures["num_tokens"], figures["num_steps"]) == (0, 0)
    assert figures["mean_abs_logprob_diff"] is None


def test_a_mean_above_the_threshold_is_told_once_with_its_step_and_figures() -> None:
    book = MismatchBook(0.0625)
    said = [
        book.observe(step_with(mean_abs), Version(step))
        for step, mean_abs in enumerate((0.01, 0.0625, 0.25, 0.5, 0.01, 0.5), start=1)
    ]
    [warning] = [text for text in said if text]
    assert said.index(warning) == 2
    assert "in step 3 " in warning
    assert "0.25 in the mean" in warning
    assert "inference.mismatch_warn is 0.0625" in warning


def test_the_summary_keeps_the_three_figures_of_the_contract() -> None:
    book = MismatchBook()
    book.observe(step_with(0.5), Version(1))
    summary = Books(bound=1, mismatch=book).summary(num_resident=0)["mismatch"]
    assert summary["mean_abs_logprob_diff"] == summary["max_abs_logprob_diff"] == 0.5
    assert summary["k3_kl"] == pytest.approx(math.exp(-0.5) - 0.5)


def test_the_scheduler_warns_once_a_run_and_tells_it_again_at_the_end() -> None:
    world = World(
        Settings(steps=4, group_size=2, groups_per_step=1, max_staleness=1, mismatch_warn=0.125)
    )
    world.metrics = step_with(0.25)
    world.finish_fairly()
    said = [a.message for _, actions in world.lines for a in actions if isinstance(a, act.Warn)]
    assert len(said) == 1
    assert "in step 1 " in said[0]
    summary = world.scheduler.summary()
    assert summary["warnings"] == said
    assert summary["mismatch"]["num_steps"] == 4
    assert summary["mismatch"]["warn_above"] == 0.125
