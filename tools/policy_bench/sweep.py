"""Jobs of a multirun over swap policies, each against the others of its own repetition.

A machine that others use too changes its speed from hour to hour. So ratios are made within a
repetition, whose jobs ran one after another, and only they are averaged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from colocate.adapters.environments.latency import make_latency
from colocate.core.phases import Phase
from colocate.journal import Entry, read_journal
from colocate.report.statistics import Estimate, estimate
from colocate.report.sweep_jobs import SEED, SweepJob
from colocate.report.sweep_measures import measure
from tools.policy_bench.busy import engine_busy_s
from tools.policy_bench.hiding import hidden_share
from tools.run_config import RunConfigError, read_run_config

DRAIN, ADAPTIVE = "drain", "adaptive"
MEASURES = (
    "throughput",
    "busy",
    "hidden",
    "hideable",
    "mean_lag",
    "max_lag",
    "swaps",
    "expired_share",
)


class UnfitSweepError(Exception):
    """A multirun that is no comparison of swap policies."""


@dataclass(frozen=True, kw_only=True)
class Repetition:
    """Jobs of one seed: their measures by policy, fixed intervals under their own names."""

    seed: str
    measures: Mapping[str, Mapping[str, float | None]]

    def throughput(self, policy: str) -> float:
        value = self.measures[policy]["throughput"]
        assert value is not None
        return value


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Of one policy, over repetitions.

    Attributes:
        measures: By the names of ``MEASURES``.
        to_drain: Its trained trajectories a second, by those of ``drain``.
        to_best: Likewise, by those of the fixed interval that was the best on the mean.
    """

    measures: Mapping[str, Estimate | None]
    to_drain: Estimate
    to_best: Estimate


def repetitions(sweep: Path, jobs: Sequence[SweepJob]) -> list[Repetition]:
    """Raises UnfitSweepError where a job did not complete, or a repetition lacks a policy."""
    broken = [f"{job.name} ({job.reason or job.status})" for job in jobs if not job.is_complete]
    if broken:
        raise UnfitSweepError(f"{len(broken)} of {len(jobs)} jobs did not complete: {broken[0]}")
    by_seed: dict[str, dict[str, Mapping[str, float | None]]] = {}
    for job in jobs:
        label = job.overrides.get("scheduler", str(job.policy))
        found = by_seed.setdefault(job.overrides.get(SEED, ""), {})
        if label in found:
            raise UnfitSweepError(f"two jobs are of scheduler={label} and the same seed")
        found[label] = {**measure(job), **_of_journal(sweep / job.name, job)}
    policies = {frozenset(found) for found in by_seed.values()}
    if len(policies) != 1 or not {DRAIN, ADAPTIVE} < next(iter(policies)):
        raise UnfitSweepError("each seed needs the same policies: drain, adaptive, and intervals")
    return [Repetition(seed=seed, measures=found) for seed, found in by_seed.items()]


def best_interval(rounds: Sequence[Repetition]) -> str:
    """The fixed interval that trained most, on the mean over repetitions, in hindsight."""
    fixed = [policy for policy in rounds[0].measures if policy not in (DRAIN, ADAPTIVE)]
    return max(fixed, key=lambda policy: sum(r.throughput(policy) for r in rounds))


def figures(rounds: Sequence[Repetition]) -> dict[str, Figures]:
    """By policy, in the order in which they ran."""
    best = best_interval(rounds)
    return {
        policy: Figures(
            measures={
                name: estimate(values) if None not in values else None  # type: ignore[arg-type]
                for name in MEASURES
                for values in [[r.measures[policy][name] for r in rounds]]
            },
            to_drain=estimate([r.throughput(policy) / r.throughput(DRAIN) for r in rounds]),
            to_best=estimate([r.throughput(policy) / r.throughput(best) for r in rounds]),
        )
        for policy in rounds[0].measures
    }


def _of_journal(folder: Path, job: SweepJob) -> dict[str, float | None]:
    """``busy``: share of the time between start-up and closing in which engine or trainer computed.
    ``hideable``: how much of the environments' time that could pass during swaps did.
    """
    assert job.summary is not None
    entries = list(read_journal(folder / "events.jsonl"))
    phase_s = job.summary["phase_s"]
    at_work_s = sum(phase_s.values()) - phase_s[Phase.STARTING] - phase_s[Phase.CLOSING]
    busy_s = engine_busy_s(entries) + phase_s[Phase.TRAINING]
    return {"busy": float(busy_s / at_work_s), "hideable": _hideable(folder, job, entries)}


def _hideable(folder: Path, job: SweepJob, entries: Sequence[Entry]) -> float | None:
    """None of a simulated run: its latencies are not those of the configured model."""
    assert job.summary is not None
    if "simulation" in job.summary:
        return None
    try:
        config = read_run_config(folder)
    except RunConfigError as error:
        raise UnfitSweepError(str(error)) from error
    latency = make_latency(config.environment.latency)
    return None if latency is None else hidden_share(entries, latency, config.seed)
