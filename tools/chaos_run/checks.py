"""What must hold of a run's folder, and of the machine, when an ordeal is over."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import Path

import psutil

from colocate.replay import replay
from colocate.report.records import read_metrics

LET_GO_S = 20.0
SHARED_MEMORY = Path("/dev/shm")


def find_faults_of_books(
    run_dir: Path,
    steps: int,
    status: int,
    seen: Collection[psutil.Process],
    run_ids: Collection[str],
) -> list[str]:
    """Everything that does not balance, in words."""
    problems = list(_left_behind(seen, run_ids))
    if status:
        return [*problems, f"the last life ended with {status}; its books were not looked at"]
    problems += _replayed(run_dir)
    problems += _steps_taken_once(run_dir, steps)
    problems += _summary_balances(run_dir)
    return problems


def _replayed(run_dir: Path) -> Iterator[str]:
    """Each life by itself; the last one also with what it found of the life before."""
    for violation in replay(run_dir).violations:
        yield f"the last journal, line {violation.seq + 1}: {violation.message}"
    for journal in sorted(run_dir.glob("events.*.jsonl")):
        with tempfile.TemporaryDirectory() as alone:
            (Path(alone) / "events.jsonl").symlink_to(journal.absolute())
            for violation in replay(Path(alone)).violations:
                yield f"{journal.name}, line {violation.seq + 1}: {violation.message}"


def _steps_taken_once(run_dir: Path, steps: int) -> Iterator[str]:
    counts = Counter(int(row["step"]) for row in read_metrics(run_dir / "metrics.jsonl"))
    if counts != Counter(range(1, steps + 1)):
        yield f"metrics.jsonl has the steps {sorted(counts.elements())}"


def _summary_balances(run_dir: Path) -> Iterator[str]:
    summary = json.loads((run_dir / "summary.json").read_text())
    ended = {k: n for k, n in summary["trajectories"].items() if k not in ("admitted", "replayed")}
    if sum(ended.values()) != summary["trajectories"]["admitted"]:
        yield f"of {summary['trajectories']['admitted']} trajectories {ended} are known"
    if summary["versions"]["engine"] != summary["versions"]["trainer"]:
        yield f"the versions at the end are {summary['versions']}"


def _left_behind(seen: Collection[psutil.Process], run_ids: Collection[str]) -> Iterator[str]:
    _, alive = psutil.wait_procs(list(seen), timeout=LET_GO_S)
    for process in alive:
        if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
            yield f"process {process.pid} is left: {process.name()}"
    for run_id in run_ids:
        for path in SHARED_MEMORY.glob(f"*{run_id}*"):
            yield f"{path} is left"
