"""What earlier tries at a multirun left: done jobs stay, unfinished ones make room."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from colocate.cli.compose import Job
from colocate.problems import Problem
from colocate.report.sweep_jobs import SUPERSEDED
from colocate.supervision.run_lock import LOCK_NAME, RunFolderBusyError, RunLock

# How a run is gone on with is no part of what it is.
_NOT_COMPARED = ("resume",)
_MAX_NAMED = 5


@dataclass(frozen=True, slots=True)
class EarlierJobs:
    """By number of the job.

    Attributes:
        done: Completed with the very configuration that is asked for now: not done again.
        unfinished: Failed, stopped or broken off.
        problems: Folders that hold something else, or that a run is in.
    """

    done: frozenset[int] = frozenset()
    unfinished: frozenset[int] = frozenset()
    problems: tuple[Problem, ...] = field(default=())


def find_earlier_jobs(jobs: Sequence[Job]) -> EarlierJobs:
    """Looks into each job's folder; changes nothing."""
    done: set[int] = set()
    unfinished: set[int] = set()
    problems: list[Problem] = []
    for number, job in enumerate(jobs):
        if not _holds_a_run(job.run_dir):
            continue
        if problem := _problem(job):
            problems.append(problem)
        elif _status(job.run_dir) == "completed":
            done.add(number)
        else:
            unfinished.add(number)
    return EarlierJobs(frozenset(done), frozenset(unfinished), tuple(problems))


def set_aside(run_dir: Path) -> Path:
    """Moves what an unfinished try left to ``superseded/NAME-K`` beside it; returns that."""
    folder = run_dir.parent / SUPERSEDED
    folder.mkdir(exist_ok=True)
    number = len(list(folder.glob(f"{run_dir.name}-*")))
    return run_dir.rename(folder / f"{run_dir.name}-{number}")


def _holds_a_run(run_dir: Path) -> bool:
    return any((run_dir / name).exists() for name in ("summary.json", "events.jsonl"))


def _status(run_dir: Path) -> str | None:
    try:
        summary = json.loads((run_dir / "summary.json").read_text(encoding="utf-8"))
        return str(summary["status"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _problem(job: Job) -> Problem | None:
    if (job.run_dir / LOCK_NAME).exists():
        try:
            with RunLock(job.run_dir):
                pass
        except RunFolderBusyError as error:
            return _of_folder(job, str(error).partition(";")[0], "wait for it, or end it")
    try:
        saved = OmegaConf.to_container(
            OmegaConf.load(job.run_dir / ".hydra" / "config.yaml"), resolve=True
        )
    except (OSError, OmegaConfBaseException) as error:
        text = " ".join(str(error).split())
        return _of_folder(job, f"holds a run whose configuration cannot be read: {text}")
    assert isinstance(saved, dict)
    different = sorted(set(_differences(saved, job.tree)))
    if not different:
        return None
    named = ", ".join(different[:_MAX_NAMED])
    more = f" and {len(different) - _MAX_NAMED} more" if len(different) > _MAX_NAMED else ""
    return _of_folder(job, f"holds a run of another configuration; they differ in {named}{more}")


def _of_folder(
    job: Job, rule: str, remedy: str = "take another folder: hydra.sweep.dir=PATH"
) -> Problem:
    return Problem(
        field="hydra.sweep.dir", value=str(job.run_dir), rule=rule, remedy=remedy, jobs=(job.label,)
    )


def _differences(one: Mapping[Any, Any], other: Mapping[Any, Any]) -> Iterator[str]:
    for path in _flat(one).items() ^ _flat(other).items():
        if path[0] not in _NOT_COMPARED:
            yield path[0]


def _flat(tree: Mapping[Any, Any], prefix: str = "") -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in tree.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = json.dumps(value, default=str)
    return found
