"""pass@k against its definition, and what an evaluation's metrics say and leave unsaid."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from colocate.rollout.pass_at_k import Verdict, measure, pass_at_k


@pytest.mark.parametrize(
    ("n", "c", "k"), [(n, c, k) for n in range(1, 7) for c in range(n + 1) for k in range(1, n + 1)]
)
def test_pass_at_k_is_the_share_of_k_subsets_in_which_one_passes(n: int, c: int, k: int) -> None:
    passed = [True] * c + [False] * (n - c)
    subsets = list(itertools.combinations(passed, k))
    assert pass_at_k(n, c, k) == pytest.approx(np.float64(sum(map(any, subsets))) / len(subsets))


def test_the_estimate_has_no_bias() -> None:
    draw = np.random.default_rng(1)
    share, k = 0.3, 3
    found = [pass_at_k(8, int(draw.binomial(8, share)), k) for _ in range(20_000)]
    assert np.mean(found) == pytest.approx(1 - (1 - share) ** k, abs=0.01)


@pytest.mark.parametrize(("n", "c", "k"), [(2, 1, 3), (2, 3, 1), (2, -1, 1), (2, 1, 0)])
def test_what_cannot_be_estimated_is_refused(n: int, c: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k}"):
        pass_at_k(n, c, k)


def verdicts(*rewards: tuple[float, ...]) -> list[Verdict]:
    return [
        Verdict(prompt=prompt, reward=reward, num_tokens=10, is_truncated=reward < 0)
        for prompt, of_one in enumerate(rewards)
        for reward in of_one
    ]


def test_one_sample_a_prompt_has_wilsons_interval() -> None:
    found = measure(verdicts((1.0,), (0.0,), (1.0,), (1.0,)), k=1, pass_reward=1.0)

    # Wilson 1927: (p + z^2/2n +- z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n), z = 1.959964.
    z, n, p = 1.959963984540054, 4, 0.75
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z * np.sqrt(p * (1 - p) / n + z * z / (4 * n * n)) / (1 + z * z / n)
    assert found["pass@1"] == 0.75
    assert found["pass@1_low"] == pytest.approx(middle - half)
    assert found["pass@1_high"] == pytest.approx(middle + half)
    assert found["num_prompts"] == found["num_samples"] == 4
    assert "pass@4" not in found


def test_samples_of_a_prompt_are_no_more_evidence_than_the_prompt() -> None:
    """Ten like samples of each of eight prompts leave pass@1 as unsure as one of each."""
    few = measure(verdicts(*[(float(i % 2),) for i in range(8)]), k=1, pass_reward=1.0)
    many = measure(verdicts(*[(float(i % 2),) * 10 for i in range(8)]), k=1, pass_reward=1.0)
    assert many["pass@1_low"] == few["pass@1_low"]
    assert many["pass@1_high"] == few["pass@1_high"]


def test_several_samples_have_a_bootstrap_interval_around_their_mean() -> None:
    draw = np.random.default_rng(2)
    rewards = [
        tuple(float(x) for x in draw.random(4) < 0.2 + 0.6 * draw.random()) for _ in range(40)
    ]
    found = measure(verdicts(*rewards), k=4, pass_reward=1.0)
    assert found["pass@1"] == pytest.approx(np.mean([np.mean(r) for r in rewards]))
    assert found["pass@4"] == pytest.approx(np.mean([any(r) for r in rewards]))
    for name in ("pass@1", "pass@4", "reward_mean"):
        assert found[f"{name}_low"] < found[name] < found[f"{name}_high"]
    again = measure(verdicts(*rewards), k=4, pass_reward=1.0)
    assert found == again


def test_prompts_that_all_score_alike_say_nothing_of_how_far_they_scatter() -> None:
    found = measure(verdicts((0.4,), (0.4,)), k=1, pass_reward=1.0)
    assert found["reward_mean"] == pytest.approx(0.4)
    assert "reward_mean_low" not in found
    assert found["pass@1_high"] > 0.3


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:The BCa")
@pytest.mark.parametrize(
    "rewards",
    [
        [(0.1, 0.2, 0.3), (0.3, 0.2, 0.1), (0.2, 0.3, 0.1)],
        [(0.5,), (0.5,), (0.5000000000000001,)],
        [(0.0,)] * 9 + [(1e-300,)],
    ],
)
def test_prompts_that_differ_by_rounding_have_no_interval_and_no_number_that_is_none(
    rewards: list[tuple[float, ...]],
) -> None:
    """The bootstrap makes nan of them, which no line of eval.jsonl can hold."""
    found = measure(verdicts(*rewards), k=1, pass_reward=1.0)
    assert all(math.isfinite(value) for value in found.values())
    assert "reward_mean" in found
    assert "reward_mean_low" not in found


def test_a_prompt_counts_for_pass_at_k_where_k_of_its_samples_were_scored() -> None:
    found = measure(verdicts((1.0, 0.0), (0.0,)), k=2, pass_reward=1.0)
    assert found["pass@1"] == pytest.approx(0.25)
    assert found["pass@2"] == 1.0


def test_nothing_scored_measures_nothing() -> None:
    assert measure([], k=1, pass_reward=1.0) == {}
