"""What metrics are called in trackers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from colocate.core.actions import CloseSwap
from colocate.core.phases import Phase
from colocate.core.types import MemorySample, SleepMode, Version
from colocate.loggers.names import GROUPS, name_of, of_evaluation, of_memory, of_step, of_swap

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
OF_TRAINING = {
    "loss", "policy_loss", "entropy", "kl", "kl_penalty_mean", "overlong_penalty_mean",
    "ratio_mean", "ratio_max", "clip_fraction_low", "clip_fraction_high", "clip_fraction_dual",
    "importance_weight_mean", "importance_weight_max", "importance_weight_truncated_fraction",
    "rejected_token_fraction", "rejected_sequence_fraction", "rejected_by_mask_fraction",
    "rejected_by_band_fraction", "rejected_by_veto_fraction", "advantage_abs_max", "num_tokens",
    "num_sequences", "num_masked", "learning_rate", "grad_norm", "grad_norm_max",
    "optimizer_steps", "micro_batches",
}  # fmt: skip


def documented() -> list[str]:
    """The names in the first column of the first table of docs/metrics.md."""
    table = next(p for p in PAGE.read_text().split("\n\n") if p.startswith("| name"))
    cells = [line.split("|")[1] for line in table.splitlines()[2:]]
    return [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]


@pytest.mark.parametrize("metric", sorted({*documented()} - {"step", "batch"}))
def test_every_documented_metric_has_a_place_that_was_chosen(metric: str) -> None:
    group, _, rest = name_of(metric).partition("/")
    assert group in GROUPS
    assert rest
    assert (group == "train") == (metric in OF_TRAINING)


def test_no_two_metrics_have_one_name() -> None:
    names = [name_of(metric) for metric in documented()]
    assert len(names) == len(set(names))


def test_a_step_is_named_and_its_number_is_no_metric() -> None:
    row = {"step": 3, "batch": 2, "loss": 0.5, "reward_mean": 1, "lag_max": 1, "swaps": 2}
    assert of_step(row) == {
        "train/loss": 0.5,
        "rollout/reward_mean": 1.0,
        "staleness/lag_max": 1.0,
        "swap/count": 2.0,
    }


def test_an_evaluation_keeps_its_names() -> None:
    row = {"step": 3, "time_s": 1.0, "pass@1": 0.5, "pass@1_low": 0.3, "num_cut": 0}
    assert of_evaluation(row) == {"eval/pass@1": 0.5, "eval/pass@1_low": 0.3, "eval/num_cut": 0.0}


def test_a_swap_tells_its_phases_and_its_memory_as_far_as_they_are_known() -> None:
    swap = CloseSwap(
        swap=1,
        version=Version(1),
        mode=SleepMode.LEVEL_2,
        offloaded=(),
        awake_bytes=9,
        asleep_bytes=None,
        engine_released_bytes=None,
        peak_bytes=12,
        cost_s=1.5,
        phase_s={Phase.PARKING: 0.5},
    )
    assert of_swap(swap) == {
        "swap/cost_s": 1.5,
        "swap/parking_s": 0.5,
        "memory/awake_bytes": 9.0,
        "memory/peak_bytes": 12.0,
    }


def test_memory_is_told_by_tenant() -> None:
    sample = MemorySample(used=7, total=10, tenants={"engine": 4, "trainer": 3})
    assert of_memory(sample) == {
        "memory/used_bytes": 7.0,
        "memory/engine_bytes": 4.0,
        "memory/trainer_bytes": 3.0,
    }
