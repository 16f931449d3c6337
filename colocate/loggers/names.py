"""What metrics are called in trackers: ``GROUP/NAME``, by one table.

``metrics.jsonl`` and ``eval.jsonl`` keep their own names, which ``docs/metrics.md`` explains.
"""

from __future__ import annotations

from collections.abc import Mapping

from colocate.core.actions import CloseSwap
from colocate.core.types import MemorySample

GROUPS = ("train", "rollout", "staleness", "mismatch", "swap", "memory", "perf", "eval")

_RENAMED = {
    "duration_s": "perf/train_step_s",
    "tokens_per_s": "perf/train_tokens_per_s",
    "time_s": "perf/time_s",
    "swaps": "swap/count",
    "process_restarts": "perf/process_restarts",
    "num_replayed": "rollout/num_replayed",
    "truncated_fraction": "rollout/truncated_fraction",
    "flat_group_fraction": "rollout/flat_group_fraction",
    "spares_cancelled": "rollout/spares_cancelled",
    "cancelled_tokens_mean": "rollout/cancelled_tokens_mean",
}
_GROUP_BY_PREFIX = {
    "reward_": "rollout",
    "sampled_": "rollout",
    "sequence_length_": "rollout",
    "num_flat_": "rollout",
    "num_filtered_": "rollout",
    "num_replaced_": "rollout",
    "lag_": "staleness",
    "replay_lag_": "staleness",
    "group_version_": "staleness",
    "mixed_group_": "staleness",
    "baseline_shift_": "staleness",
}
_OWN_GROUP = "mismatch_"
_LEFT_OUT = frozenset({"step", "batch"})


def of_step(row: Mapping[str, float]) -> dict[str, float]:
    """A line of ``metrics.jsonl``, by the names of trackers."""
    return {name_of(name): float(value) for name, value in row.items() if name not in _LEFT_OUT}


def of_evaluation(row: Mapping[str, float]) -> dict[str, float]:
    """A line of ``eval.jsonl``."""
    left_out = _LEFT_OUT | {"time_s"}
    return {f"eval/{name}": float(value) for name, value in row.items() if name not in left_out}


def of_swap(swap: CloseSwap) -> dict[str, float]:
    """A swap: what it cost, phase by phase, and what it left on the device."""
    values: dict[str, float | None] = {
        "swap/cost_s": swap.cost_s,
        "swap/predicted_cost_s": swap.predicted_cost_s,
        **{f"swap/{phase}_s": seconds for phase, seconds in swap.phase_s.items()},
        "memory/awake_bytes": swap.awake_bytes,
        "memory/asleep_bytes": swap.asleep_bytes,
        "memory/engine_released_bytes": swap.engine_released_bytes,
        "memory/peak_bytes": swap.peak_bytes,
    }
    return {name: float(value) for name, value in values.items() if value is not None}


def of_memory(sample: MemorySample) -> dict[str, float]:
    """A reading of the device."""
    tenants = {f"memory/{tenant}_bytes": float(held) for tenant, held in sample.tenants.items()}
    return {"memory/used_bytes": float(sample.used), **tenants}


def name_of(metric: str) -> str:
    """Of one metric of a training step; what is in no other group is of training."""
    if metric in _RENAMED:
        return _RENAMED[metric]
    if metric.startswith(_OWN_GROUP):
        return f"mismatch/{metric.removeprefix(_OWN_GROUP)}"
    for prefix, group in _GROUP_BY_PREFIX.items():
        if metric.startswith(prefix):
            return f"{group}/{metric}"
    return f"train/{metric}"
