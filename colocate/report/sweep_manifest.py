"""``sweep.json``: the jobs that a multirun was to do, and what became of each."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

from colocate.report.records import write_summary

NAME = "sweep.json"
SCHEMA = 1

JobState = Literal["waiting", "running", "done", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestJob:
    """One job; ``folder`` is relative to the sweep's, ``reason`` says why it failed."""

    folder: str
    label: str
    state: JobState = "waiting"
    reason: str | None = None


class SweepManifest:
    """Written anew at each change, so that a sweep that was killed tells how far it came."""

    def __init__(self, folder: Path, jobs: list[ManifestJob]) -> None:
        self.folder = folder
        self.jobs = jobs

    def mark(self, number: int, state: JobState, reason: str | None = None) -> None:
        """Notes what became of the job with this number, counted from 0."""
        self.jobs[number] = replace(self.jobs[number], state=state, reason=reason)
        self.write()

    def write(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        jobs = [asdict(job) for job in self.jobs]
        write_summary(self.folder / NAME, {"schema": SCHEMA, "jobs": jobs})


def read_manifest(folder: Path) -> list[ManifestJob]:
    """The jobs of a sweep.

    Raises:
        OSError, ValueError, KeyError, TypeError: no such file, or it is something else.
    """
    content = json.loads((folder / NAME).read_text(encoding="utf-8"))
    return [ManifestJob(**job) for job in content["jobs"]]
