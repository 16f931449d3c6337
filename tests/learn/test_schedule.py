from itertools import pairwise

import pytest

from colocate.config import TrainerConfig
from colocate.learn.schedule import learning_rate


def rates(steps: int = 10, **fields) -> list[float]:
    trainer = TrainerConfig(learning_rate=1.0, **fields)
    return [learning_rate(trainer, step=step, steps=steps) for step in range(steps)]


def test_warm_up_rises_by_equal_parts_to_the_full_rate():
    assert rates(warmup_steps=4)[:5] == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0])


def test_a_constant_schedule_stays():
    assert rates(warmup_steps=2)[2:] == [1.0] * 8


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
def test_a_decaying_schedule_starts_full_falls_each_step_and_ends_above_zero(schedule):
    after = rates(warmup_steps=2, schedule=schedule)[2:]
    assert after[0] == 1.0
    assert all(later < earlier for earlier, later in pairwise(after))
    assert 0 < after[-1] < 0.2


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_warm_up_as_long_as_the_run_is_no_division_by_zero(schedule):
    assert rates(steps=3, warmup_steps=3, schedule=schedule)[-1] == 1.0


def test_a_step_beyond_the_plan_learns_nothing_rather_than_backwards():
    trainer = TrainerConfig(learning_rate=1.0, schedule="linear")
    assert learning_rate(trainer, step=12, steps=10) == 0.0
