"""``colocate report``: tells a multirun from a run, and writes the page of either."""

from __future__ import annotations

import sys
from pathlib import Path

from colocate.report.sweep_jobs import is_sweep

_OF_A_RUN = ("summary.json", "metrics.jsonl", "events.jsonl", ".hydra")

NEITHER = (
    "{folder} is neither a run's folder (it has no summary.json, metrics.jsonl or events.jsonl) "
    "nor a multirun's (it has no multirun.yaml). Give the folder that the run printed at its end, "
    "or the sweep's (hydra.sweep.dir)."
)


def is_run(folder: Path) -> bool:
    """Whether a run has left something in it, or has begun to."""
    return any((folder / name).exists() for name in _OF_A_RUN)


def report(folder: Path, *, num_trajectories: int | None = None) -> int:
    """Writes the page, says where it is, and returns the command's exit status."""
    if is_sweep(folder):
        from colocate.report.sweep_report import write_sweep_report

        page = write_sweep_report(folder, num_trajectories=num_trajectories)
    elif num_trajectories is not None:
        print(
            f"colocate report: --trajectories is for a multirun's folder; {folder} is none "
            "(it has no multirun.yaml)",
            file=sys.stderr,
        )
        return 2
    elif is_run(folder):
        from colocate.report.run_report import write_run_report

        page = write_run_report(folder)
    else:
        print(f"colocate report: {NEITHER.format(folder=folder)}", file=sys.stderr)
        return 2
    print(f"Report: {page.absolute()}")
    return 0
