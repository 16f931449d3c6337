"""What a sweep compares: numbers of each job, and of the points that repetitions belong to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from colocate.core.phases import SWAP, Phase
from colocate.report.records import with_own_trajectories
from colocate.report.statistics import Estimate, estimate
from colocate.report.sweep_jobs import SweepJob, swept_keys

LAST_STEPS = 10
"""A single step's mean reward is noisy: an end is the mean of so many."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A number of a job: its name in tables, and what it means."""

    name: str
    title: str
    says: str
    digits: int = 3


MEASURES = (
    Measure(
        "throughput",
        "trained/s",
        "trained trajectories for each second between start-up's end and closing's start",
        1,
    ),
    Measure("mean_lag", "mean lag", "of trained tokens, in versions"),
    Measure("max_lag", "max lag", "of the oldest trained token, in versions", 0),
    Measure("reward_end", "reward", f"mean of the last {LAST_STEPS} steps"),
    Measure("rollout_share", "rollout", "share of the time between start-up and closing"),
    Measure("training_share", "training", "likewise"),
    Measure("swap_share", "swapping", "likewise; training left out"),
    Measure("swaps", "swaps", "vLLM to DeepSpeed and back", 0),
    Measure(
        "hidden",
        "hidden env. time",
        "share of the environments' time that went by during swaps and training",
    ),
    Measure("expired_share", "expired", "share of admitted trajectories that the bound ended"),
)

Point = tuple[tuple[str, str], ...]
"""Swept keys with their values, without the seed: what repetitions have in common."""


@dataclass(frozen=True, slots=True)
class Group:
    """Complete jobs that differ by seed only."""

    point: Point
    jobs: tuple[SweepJob, ...]

    @property
    def label(self) -> str:
        """Short: ``max_staleness=3, mode=none``."""
        return label_of(self.point)

    @property
    def is_adaptive(self) -> bool:
        """Whether its policy chose by itself when to swap."""
        return self.jobs[0].policy == "adaptive"


def label_of(point: Point) -> str:
    return ", ".join(f"{key.rpartition('.')[2]}={value}" for key, value in point) or "all jobs"


def measure(job: SweepJob) -> dict[str, float | None]:
    """The numbers of ``MEASURES`` of a complete job; None where the job has none of the kind."""
    assert job.summary is not None
    summary = job.summary
    phase_s = summary["phase_s"]
    at_work_s = sum(phase_s.values()) - phase_s[Phase.STARTING] - phase_s[Phase.CLOSING]
    swap_s = sum(phase_s[phase] for phase in SWAP if phase is not Phase.TRAINING)
    environment, trajectories = summary["environment"], summary["trajectories"]
    rewards = [row["reward_mean"] for row in with_own_trajectories(job.metrics)]
    return {
        "throughput": _ratio(trajectories["trained"], at_work_s),
        "mean_lag": summary["staleness"]["mean_trained_lag"],
        "max_lag": summary["staleness"]["max_trained_lag"],
        "reward_end": _mean(rewards[-LAST_STEPS:]),
        "rollout_share": _ratio(phase_s[Phase.ROLLOUT], at_work_s),
        "training_share": _ratio(phase_s[Phase.TRAINING], at_work_s),
        "swap_share": _ratio(swap_s, at_work_s),
        "swaps": float(summary["swaps"]),
        "hidden": _ratio(environment["hidden_s"], environment["busy_s"]),
        "expired_share": _ratio(trajectories["expired"], trajectories["admitted"]),
    }


def group_jobs(jobs: Sequence[SweepJob]) -> list[Group]:
    """Complete jobs by point; points in the order of their values, numbers as numbers."""
    keys = swept_keys(jobs)
    found: dict[Point, list[SweepJob]] = {}
    for job in jobs:
        if job.is_complete:
            point = tuple((key, job.overrides.get(key, "default")) for key in keys)
            found.setdefault(point, []).append(job)
    order = sorted(found, key=lambda point: [sort_key(value) for _, value in point])
    return [Group(point=point, jobs=tuple(found[point])) for point in order]


def sort_key(value: str) -> tuple[bool, float, str]:
    """Numbers before words, each in their own order."""
    try:
        return (False, float(value), "")
    except ValueError:
        return (True, 0.0, value)


def summarise(group: Group) -> dict[str, Estimate | None]:
    """Each measure over the repetitions of a point that have it."""
    measured = [measure(job) for job in group.jobs]
    return {m.name: _estimate(row[m.name] for row in measured) for m in MEASURES}


def trained_by_step(job: SweepJob) -> list[int]:
    """Trajectories trained for the first time, up to and including each step."""
    total, counts = 0, []
    for row in job.metrics:
        total += round(row["num_sequences"] - row.get("num_replayed", 0))
        counts.append(total)
    return counts


def common_budget(jobs: Iterable[SweepJob]) -> int | None:
    """The largest number of trained trajectories that every complete job reached."""
    reached = [counts[-1] for job in jobs if job.is_complete and (counts := trained_by_step(job))]
    return min(reached, default=None)


def reward_after(job: SweepJob, num_trajectories: int) -> float | None:
    """Mean reward over the last steps that ended with at most so many trained trajectories.

    Over ``LAST_STEPS`` of them, or over a quarter of all those where that is fewer, so that a
    short job is judged by its end too. None where the job never trained so many, or where its
    first step alone trained more.
    """
    counts = trained_by_step(job)
    if not counts or counts[-1] < num_trajectories:
        return None
    rewards: list[float] = [
        row["reward_mean"]
        for row, count in zip(job.metrics, counts, strict=True)
        if count <= num_trajectories and "reward_mean" in row
    ]
    if not rewards:
        return None
    window = max(1, min(LAST_STEPS, len(rewards) // 4))
    return sum(rewards[-window:]) / window


def learned(groups: Iterable[Group], num_trajectories: int) -> dict[Point, Estimate | None]:
    """``reward_after`` over the repetitions of each point; None where no job came so far."""
    return {
        group.point: _estimate(reward_after(job, num_trajectories) for job in group.jobs)
        for group in groups
    }


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _estimate(values: Iterable[float | None]) -> Estimate | None:
    known = [value for value in values if value is not None]
    return estimate(known) if known else None
