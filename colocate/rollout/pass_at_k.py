"""What an evaluation found: pass@k, mean reward, and how sure of them one can be.

Intervals are of 95%, over the prompts: samples of one prompt are alike, so that they are no more
evidence than their prompt is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

CONFIDENCE = 0.95
NUM_RESAMPLES = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One sample that was scored. ``num_tokens``: those it sampled."""

    prompt: int
    reward: float
    num_tokens: int
    is_truncated: bool


def pass_at_k(num_samples: int, num_passed: int, k: int) -> float:
    """P(at least one of k samples passes), estimated without bias from n of which c passed.

    1 - C(n - c, k) / C(n, k); Chen et al. 2021, Evaluating Large Language Models Trained on Code,
    equation 1.

    Raises:
        ValueError: where k is more than n, of which nothing can be said.
    """
    if not 0 <= num_passed <= num_samples or not 1 <= k <= num_samples:
        raise ValueError(f"pass@{k} of {num_samples} samples, {num_passed} of them passed")
    return 1 - math.comb(num_samples - num_passed, k) / math.comb(num_samples, k)


def measure(verdicts: Sequence[Verdict], *, k: int, pass_reward: float) -> dict[str, float]:
    """The metrics of an evaluation, as in ``eval.jsonl``; none where nothing was scored.

    A prompt counts for ``pass@k`` where at least k of its samples were scored. ``_low`` and
    ``_high`` are absent where the prompts tell nothing of how far they scatter.

    Args:
        pass_reward: A sample passes with this reward or a greater one.
    """
    if not verdicts:
        return {}
    rewards: dict[int, list[float]] = {}
    for verdict in verdicts:
        rewards.setdefault(verdict.prompt, []).append(verdict.reward)
    passed = {prompt: sum(r >= pass_reward for r in of_one) for prompt, of_one in rewards.items()}
    metrics = {
        **_with_interval("pass@1", [pass_at_k(len(r), passed[p], 1) for p, r in rewards.items()]),
        **_with_interval("reward_mean", [sum(r) / len(r) for r in rewards.values()], share=False),
        "num_prompts": float(len(rewards)),
        "num_samples": float(len(verdicts)),
        "tokens_mean": sum(v.num_tokens for v in verdicts) / len(verdicts),
        "truncated_fraction": sum(v.is_truncated for v in verdicts) / len(verdicts),
    }
    whole = [pass_at_k(len(r), passed[p], k) for p, r in rewards.items() if len(r) >= k]
    if k > 1 and whole:
        metrics |= _with_interval(f"pass@{k}", whole)
    return metrics


def _with_interval(name: str, values: Sequence[float], *, share: bool = True) -> dict[str, float]:
    mean = sum(values) / len(values)
    interval = _interval(values, share=share)
    if interval is None:
        return {name: mean}
    return {name: mean, f"{name}_low": interval[0], f"{name}_high": interval[1]}


def _interval(values: Sequence[float], *, share: bool) -> tuple[float, float] | None:
    """Wilson's where each prompt passed or did not, else by the bootstrap (BCa) over prompts."""
    import numpy as np
    from scipy import stats

    if share and all(value in (0.0, 1.0) for value in values):
        test = stats.binomtest(round(sum(values)), len(values))
        wilson = test.proportion_ci(CONFIDENCE, method="wilson")
        return float(wilson.low), float(wilson.high)
    # Means that differ by rounding alone are equal; the bootstrap knows no interval of them.
    if np.allclose(values, values[0], rtol=1e-9, atol=0.0):
        return None
    found = stats.bootstrap(
        (np.asarray(values),),
        np.mean,
        n_resamples=NUM_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="BCa",
        rng=np.random.default_rng(0),
    ).confidence_interval
    low, high = float(found.low), float(found.high)
    return (low, high) if math.isfinite(low) and math.isfinite(high) else None
