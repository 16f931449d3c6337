"""What is watched: a folder whose files change, and the page that is drawn of it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from colocate.report.page import render
from colocate.report.sweep_jobs import is_sweep
from colocate.report.sweep_manifest import NAME as MANIFEST
from colocate.report.sweep_manifest import ManifestJob, read_manifest
from colocate.report.watch.strip import Strip, strip_of_run

MIN_WAIT_S = 2.0
"""Between two drawings."""
REST = 9.0
"""A drawing that took t seconds is followed by a rest of REST * t: the run needs the machine."""

_OF_A_RUN = ("summary.json", "metrics.jsonl", "events.jsonl", "trajectories", ".hydra/config.yaml")
_OF_A_JOB = ("summary.json", "metrics.jsonl")

Kind = Literal["run", "sweep"]
Signature = tuple[tuple[str, int, int], ...]


class Subject:
    """A run's or a multirun's folder. Nothing is ever written into it.

    Args:
        folder: The run's or the multirun's.
        target: A folder of our own, for the page and its pictures.
    """

    def __init__(self, folder: Path, target: Path) -> None:
        self.folder = folder
        self.kind: Kind = "sweep" if is_sweep(folder) else "run"
        self.revision = 0
        self.fault = ""
        self.page = ""
        self._target = target
        self._drawn: Signature | None = None
        self._rest_until_s = 0.0

    def draw(self) -> bool:
        """Draws the report anew where its files have changed, and not too often.

        What cannot be drawn is told by ``fault``, and tried again once the files have changed.
        """
        signature = self._signature()
        began_s = time.monotonic()
        if signature == self._drawn or (began_s < self._rest_until_s and not self._is_over()):
            return False
        self._drawn = signature
        try:
            self.page = self._write().read_text(encoding="utf-8")
            self.fault = ""
            self.revision += 1
        except Exception as error:
            self.fault = f"{type(error).__name__}: {error}"
        took_s = time.monotonic() - began_s
        self._rest_until_s = began_s + took_s + max(MIN_WAIT_S, REST * took_s)
        return True

    def strip(self) -> str:
        """The strip as HTML."""
        return render("strip.html.j2", {"strip": self._strip(), "fault": self.fault})

    def _write(self) -> Path:
        if self.kind == "sweep":
            from colocate.report.sweep_report import write_sweep_report

            return write_sweep_report(self.folder, target=self._target)
        from colocate.report.run_report import write_run_report

        return write_run_report(self.folder, target=self._target)

    # What changes

    def _is_over(self) -> bool:
        return self.kind == "run" and (self.folder / "summary.json").exists()

    def _signature(self) -> Signature:
        """Names, times and sizes of the files that the page is drawn from."""
        return tuple(
            (name, found.st_mtime_ns, found.st_size)
            for name in self._files()
            if (found := _stat(self.folder / name)) is not None
        )

    def _files(self) -> Iterator[str]:
        if self.kind == "run":
            yield from _OF_A_RUN
            return
        yield MANIFEST
        listed = [job.folder for job in self._jobs()]
        # A multirun of Hydra's own lists no jobs.
        found = sorted(path.parent.name for path in self.folder.glob("*/.hydra"))
        for job in dict.fromkeys([*listed, *found]):
            yield from (f"{job}/{name}" for name in _OF_A_JOB)

    def _jobs(self) -> list[ManifestJob]:
        try:
            return read_manifest(self.folder)
        except (OSError, ValueError, KeyError, TypeError):
            return []  # a multirun of Hydra's own, or one that is about to begin

    # The strip

    def _strip(self) -> Strip:
        if self.kind == "run":
            return strip_of_run(self.folder)
        jobs = self._jobs()
        states = {state: sum(job.state == state for job in jobs) for state in _JOB_STATES}
        told = " · ".join(f"{number} {state}" for state, number in states.items() if number)
        for job in jobs:
            if job.state == "running":
                of_job = strip_of_run(self.folder / job.folder)
                return replace(of_job, what=f"{job.label}: {of_job.what}", jobs=told)
        if not jobs:
            return Strip(status="multirun", what="")  # of Hydra's own: it lists no jobs
        if states["waiting"]:
            return Strip(status="waiting", what="no job is running", jobs=told)
        return Strip(status="failed" if states["failed"] else "completed", what="", jobs=told)


_JOB_STATES = ("done", "running", "waiting", "failed")


def _stat(path: Path) -> Any:
    try:
        return path.stat()
    except OSError:
        return None
