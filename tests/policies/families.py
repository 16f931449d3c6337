"""Families of workloads on which policies are compared, and the comparison itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

from colocate.core.settings import Settings
from tests.policies.workbench import (
    Workbench,
    Workload,
    constant,
    exponential,
    lognormal,
    pareto,
)

BASE = Settings(
    steps=64,
    group_size=4,
    groups_per_step=4,
    max_staleness=7,
    phase_timeout_s=1e9,
    training_timeout_s=1e9,
    idle_timeout_s=1e9,
    start_timeout_s=1e9,
)


@dataclass(frozen=True, kw_only=True)
class Family:
    workload: Workload
    settings: Settings = BASE


FAMILIES = {
    "no latency, cheap swap": Family(workload=Workload(latency_s=constant(0.01), swap_s=1.0)),
    "no latency, dear swap": Family(workload=Workload(latency_s=constant(0.01), swap_s=30.0)),
    "long generations, heavy-tailed lengths": Family(
        workload=Workload(
            turn_tokens=lognormal(400, 1.0, 8000),
            mean_turns=1.0,
            latency_s=constant(0.01),
            swap_s=15.0,
        )
    ),
    "short generations, exponential latency": Family(
        workload=Workload(turn_tokens=lognormal(20, 0.4, 100), latency_s=exponential(2.0), swap_s=4)
    ),
    "Pareto 2.5 latency": Family(workload=Workload(latency_s=pareto(1.0, 2.5, 600), swap_s=6.0)),
    "Pareto 1.5 latency, cheap swap": Family(
        workload=Workload(latency_s=pareto(1.0, 1.5, 600), swap_s=1.0)
    ),
    "Pareto 1.5 latency, dear swap": Family(
        workload=Workload(latency_s=pareto(1.0, 1.5, 600), swap_s=30.0)
    ),
    "large batches": Family(
        workload=Workload(latency_s=exponential(1.0), swap_s=10.0),
        settings=replace(BASE, groups_per_step=16, max_staleness=3, steps=32),
    ),
    "small batches": Family(
        workload=Workload(latency_s=pareto(0.5, 1.8, 300), swap_s=5.0),
        settings=replace(BASE, groups_per_step=1, group_size=4, steps=160),
    ),
    "engine that a few requests saturate": Family(
        workload=Workload(base_s=0.002, per_sequence_s=1e-3, latency_s=exponential(1.0), swap_s=8.0)
    ),
    "costly re-prefill": Family(
        workload=Workload(
            prefill_token_s=4e-4, prompt_tokens=600, latency_s=exponential(1.0), swap_s=4.0
        )
    ),
    "tight bound": Family(
        workload=Workload(latency_s=pareto(1.0, 1.8, 300), swap_s=8.0),
        settings=replace(BASE, max_staleness=1),
    ),
}


def throughput(family: Family, *, policy: str, interval: int = 1, seed: int = 0) -> float:
    """Trained tokens a second over a whole run, its end and the policy's learning included."""
    settings = replace(
        family.settings,
        policy=policy,  # type: ignore[arg-type]
        swap_interval=interval,
    )
    return Workbench(settings, family.workload, seed=seed).run().tokens_per_s
