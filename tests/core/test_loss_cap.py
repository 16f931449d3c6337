"""The cap on losses: how seldom it stops a healthy run, how soon a broken one."""

from __future__ import annotations

import random
import statistics

import pytest

from colocate.core.loss_cap import MAX_SURPLUS, LossCap
from colocate.core.types import TrajectoryId

HALF_STEPS = 2 * MAX_SURPLUS
"""With a cap of one half the surplus moves by halves."""


def false_alarm(rate: float, num_trajectories: int) -> float:
    """Exactly: that a walk, reflected at 0, has come to the allowed surplus."""
    inside = [1.0] + [0.0] * (HALF_STEPS - 1)
    alarmed = 0.0
    for _ in range(num_trajectories):
        alarmed += inside[-1] * rate
        lost = [0.0, *(mass * rate for mass in inside[:-1])]
        kept = [mass * (1 - rate) for mass in (*inside[1:], 0.0)]
        kept[0] += inside[0] * (1 - rate)
        inside = [a + b for a, b in zip(lost, kept, strict=True)]
    return alarmed


def mean_delay(rate: float) -> float:
    """Exactly: trajectories until the walk comes there."""
    step = total = 1 / rate
    for _ in range(HALF_STEPS - 1):
        step = (1 + (1 - rate) * step) / rate
        total += step
    return total


def stopped_after(rate: float, seed: int, limit: int, max_fraction: float = 0.5) -> int | None:
    draw = random.Random(seed)
    cap = LossCap(max_fraction)
    for number in range(limit):
        if draw.random() < rate and cap.lose(TrajectoryId(number), "unlucky"):
            return number + 1
    return None


def test_the_probabilities_that_the_documentation_names_are_those_of_the_rule() -> None:
    assert false_alarm(0.3, 10_000) == pytest.approx(4e-9, rel=0.1)
    assert false_alarm(0.4, 10_000) == pytest.approx(0.0015, rel=0.1)
    assert false_alarm(0.45, 10_000) == pytest.approx(0.25, abs=0.02)
    assert mean_delay(0.6) == pytest.approx(150, abs=0.1)
    assert mean_delay(1.0) == 32


def test_a_fault_rate_of_30_percent_never_stops_a_run_and_60_percent_always_soon() -> None:
    assert [stopped_after(0.3, seed, 10_000) for seed in range(20)] == [None] * 20
    delays = [stopped_after(0.6, seed, 10_000) for seed in range(400)]
    known = [delay for delay in delays if delay is not None]
    assert len(known) == 400
    # The standard error of the mean of 400 is below 5.
    assert statistics.fmean(known) == pytest.approx(mean_delay(0.6), abs=20)
    assert max(known) < 800


def test_an_environment_that_always_fails_is_stopped_at_once_whatever_the_order() -> None:
    assert stopped_after(1.0, 0, 100) == 32
    order = list(range(64))
    random.Random(3).shuffle(order)
    cap = LossCap(0.5)
    verdicts = [cap.lose(TrajectoryId(number), "unlucky") for number in order]
    assert verdicts[-1] is not None


def test_losses_that_come_before_the_successes_are_no_sign_of_a_broken_environment() -> None:
    """Of 640 trajectories that begin together, and of those that replace them, 30% fail at once."""
    draw = random.Random(7)
    cap = LossCap(0.5)
    lost_in_a_row = 0
    begun, admitted = range(640), 640
    while begun:
        lost = [number for number in begun if draw.random() < 0.3]
        for number in lost:
            assert cap.lose(TrajectoryId(number), "no sandbox") is None
        lost_in_a_row += len(lost)
        begun, admitted = range(admitted, admitted + len(lost)), admitted + len(lost)
    assert lost_in_a_row > 200


def test_the_order_in_which_losses_become_known_does_not_change_what_is_found() -> None:
    draw = random.Random(11)
    lost = [number for number in range(400) if draw.random() < 0.55]
    surplus = worst = 0.0
    for number in range(400):
        surplus = max(0.0, surplus + (0.5 if number in lost else -0.5))
        worst = max(worst, surplus)
    for seed in range(20):
        random.Random(seed).shuffle(lost)
        cap = LossCap(0.5)
        verdicts = [cap.lose(TrajectoryId(number), "unlucky") for number in lost]
        assert any(verdicts) is (worst >= MAX_SURPLUS)


def test_the_verdict_counts_the_stretch_it_found_and_names_its_commonest_reason() -> None:
    cap = LossCap(0.5)
    for number in range(0, 300, 3):
        assert cap.lose(TrajectoryId(number), "long ago") is None
    verdicts = [cap.lose(TrajectoryId(number), "now") for number in range(1000, 1032)]
    assert verdicts[:-1] == [None] * 31
    assert verdicts[-1] == (
        "32 of 32 consecutive trajectories were lost to faults or called invalid, more than "
        "buffer.max_filtered_fraction = 0.5 allows; most often (32 times): now"
    )


def test_a_cap_of_one_never_stops_a_run_and_a_cap_of_zero_does_at_the_first_loss() -> None:
    assert stopped_after(1.0, 0, 5000, max_fraction=1.0) is None
    assert stopped_after(1.0, 0, 10, max_fraction=0.0) == 1
