"""Reads a multirun's folder: every job that it was to do, also those that failed or never began."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from colocate.report.records import read_metrics
from colocate.report.run_files import INTERRUPTED
from colocate.report.sweep_manifest import NAME, ManifestJob, read_manifest

SUPERSEDED = "superseded"
"""Where a multirun puts what an earlier try at a job had left; no part of the sweep."""

SEED = "seed"
NOT_STARTED = "not started"
_MAX_DEPTH = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepJob:
    """A job as its folder tells it.

    Attributes:
        name: Its folder, relative to the sweep's.
        overrides: Key to value, as given, without leading plus signs; empty of a job that never
            began.
        label: What the multirun called it.
        status: As in ``summary.json``; else ``INTERRUPTED`` or ``NOT_STARTED``.
        reason: Why it did not complete, where that is known.
        policy: `scheduler.policy`, where its configuration can be read.
        summary: None where there is none that can be used.
    """

    name: str
    overrides: Mapping[str, str]
    status: str
    label: str = ""
    reason: str | None = None
    policy: str | None = None
    summary: Mapping[str, Any] | None = None
    metrics: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return self.status == "completed" and self.summary is not None


def is_sweep(folder: Path) -> bool:
    """Whether it is a multirun's, as Hydra or this package left it."""
    return (folder / "multirun.yaml").exists() or (folder / NAME).exists()


def read_sweep(folder: Path) -> list[SweepJob]:
    """All jobs, in the order of their numbers."""
    listed = {job.folder: job for job in read_manifest(folder)} if (folder / NAME).exists() else {}
    found = [str(path.relative_to(folder)) for path in _job_folders(folder, _MAX_DEPTH)]
    names = [*listed, *sorted(set(found) - set(listed), key=_natural)]
    return [_read_job(folder, name, listed.get(name)) for name in names]


def swept_keys(jobs: Iterable[SweepJob]) -> list[str]:
    """Keys of overrides that differ between jobs, without the seed; in the order given.

    What a job was given is known once it has begun: those that have not take no part.
    """
    jobs = [job for job in jobs if job.overrides]
    keys = dict.fromkeys(key for job in jobs for key in job.overrides)
    return [k for k in keys if k != SEED and len({job.overrides.get(k) for job in jobs}) > 1]


def _job_folders(folder: Path, depth: int) -> Iterable[Path]:
    for child in sorted(folder.iterdir()):
        if not child.is_dir() or child.name.startswith(".") or child.name == SUPERSEDED:
            continue
        if (child / ".hydra" / "overrides.yaml").exists():
            yield child
        elif depth > 1:
            yield from _job_folders(child, depth - 1)


def _natural(name: str) -> tuple[bool, int, str]:
    return (not name.isdecimal(), int(name) if name.isdecimal() else 0, name)


def _read_job(sweep: Path, name: str, listed: ManifestJob | None) -> SweepJob:
    folder = sweep / name
    label, reason = (listed.label, listed.reason) if listed else ("", None)
    try:
        overrides = parse_overrides(
            yaml.safe_load((folder / ".hydra" / "overrides.yaml").read_text(encoding="utf-8"))
        )
    except (OSError, ValueError, yaml.YAMLError):
        overrides = {}
    if not folder.exists():
        return SweepJob(name=name, overrides={}, status=NOT_STARTED, label=label)
    metrics, summary, status = [], None, INTERRUPTED
    try:
        if (folder / "metrics.jsonl").exists():
            metrics = read_metrics(folder / "metrics.jsonl")
        if (folder / "summary.json").exists():
            summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
            status = summary["status"]
            reason = summary.get("error") or reason
    except (OSError, ValueError, KeyError, TypeError) as error:
        summary, reason = None, f"its files cannot be read: {error}"
    if summary is not None and "phase_s" not in summary:
        summary = None
    return SweepJob(
        name=name,
        overrides=overrides,
        status=status,
        label=label,
        reason=reason,
        policy=_policy(folder),
        summary=summary,
        metrics=metrics,
    )


def _policy(folder: Path) -> str | None:
    try:
        text = (folder / ".hydra" / "config.yaml").read_text(encoding="utf-8")
        return str(yaml.safe_load(text)["scheduler"]["policy"])
    except (OSError, ValueError, KeyError, TypeError, yaml.YAMLError):
        return None


def parse_overrides(overrides: Iterable[str]) -> dict[str, str]:
    """``["+a.b=1", "c=x"]`` as a mapping; of an override without a value, the value is empty."""
    pairs = (override.partition("=") for override in overrides)
    return {key.strip().lstrip("+~"): value.strip() for key, _, value in pairs}
