"""Schedules of faults; what they do to a run is seen in real runs."""

from __future__ import annotations

import itertools
from typing import get_args

import pytest

from tools.chaos_run.schedule import SIGNALS, Target, draw_schedule

STEPS = 12


@pytest.mark.parametrize("seed", range(5))
def test_a_schedule_follows_from_its_seed_and_finds_a_run_each_time(seed: int) -> None:
    schedule = draw_schedule(seed, 4, STEPS)
    assert schedule == draw_schedule(seed, 4, STEPS)
    assert schedule != draw_schedule(seed + 1, 4, STEPS)
    assert all(a.after_step <= b.after_step for a, b in itertools.pairwise(schedule))
    assert all(0 <= fault.after_step < STEPS - 1 and fault.delay_s >= 0 for fault in schedule)


def test_every_process_and_signal_is_met() -> None:
    drawn = {(f.target, f.number) for seed in range(1, 11) for f in draw_schedule(seed, 4, STEPS)}
    assert drawn == set(itertools.product(get_args(Target), SIGNALS))
