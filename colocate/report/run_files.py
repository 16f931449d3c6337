"""Reads a run's folder: whatever is there, of a run that ended well, failed or was killed."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from colocate.arithmetic import register_arithmetic
from colocate.core.phases import IllegalTransition
from colocate.core.scheduler import Scheduler
from colocate.core.trajectory import ProtocolError
from colocate.journal import JournalError, read_journal
from colocate.report.history import History, read_history
from colocate.report.live_file import has_process
from colocate.report.records import EVALUATIONS, read_metrics
from colocate.report.trace import MEMORY_COUNTER, read_trace
from colocate.report.transcripts import TRANSCRIPTS, TrajectorySample, read_transcripts

T = TypeVar("T")

_UNREADABLE = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    JournalError,
    ProtocolError,
    IllegalTransition,
)
INTERRUPTED = "interrupted"
"""The status of a run that ended without a word."""
RUNNING = "running"
"""The status of a run whose process is there."""
_NEEDED = {
    "steps",
    "swaps",
    "wall_s",
    "phase_s",
    "trajectories",
    "tokens",
    "staleness",
    "partials",
    "environment",
    "reward",
    "memory",
    "mismatch",
    "versions",
    "warnings",
}
NUM_SAMPLED_STEPS = 3

PhaseSpan = tuple[str, float, float]
"""Name, start and length of a phase, in seconds."""

MemoryPoint = tuple[float, Mapping[str, float]]
"""Time in seconds, and bytes by tenant."""


@dataclass(slots=True)
class Intervals:
    """Starts and ends of things that overlap, in seconds; which end is whose does not matter."""

    starts_s: array[float] = field(default_factory=lambda: array("d"))
    ends_s: array[float] = field(default_factory=lambda: array("d"))


@dataclass(slots=True)
class Timeline:
    """What ``trace.json`` holds, in the order of time."""

    phases: list[PhaseSpan] = field(default_factory=list)
    memory: list[MemoryPoint] = field(default_factory=list)
    requests: Intervals = field(default_factory=Intervals)
    environments: Intervals = field(default_factory=Intervals)

    @property
    def end_s(self) -> float:
        return max((start_s + held_s for _, start_s, held_s in self.phases), default=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFiles:
    """A run as its folder tells it.

    Attributes:
        status: As in ``summary.json``; where the run wrote none, ``RUNNING`` or ``INTERRUPTED``.
        summary: As in ``summary.json``; worked out from the journal where the run left none, and
            None where that tells nothing either.
        overrides: What the command line gave.
        notes: What is missing or could not be read, a line each.
    """

    folder: Path
    status: str
    error: str | None
    summary: dict[str, Any] | None
    config: dict[str, Any]
    overrides: tuple[str, ...]
    metrics: list[dict[str, Any]]
    evaluations: list[dict[str, Any]]
    timeline: Timeline
    history: History
    samples: list[TrajectorySample]
    notes: tuple[str, ...]


def read_run(folder: Path) -> RunFiles:
    """Never raises for what the folder lacks, nor for a file that is broken."""
    notes: list[str] = []
    goes_on = has_process(folder) and not (folder / "summary.json").exists()

    def read(name: str, how: Callable[[Path], T], otherwise: T) -> T:
        path = folder / name
        if not path.exists():
            if not goes_on:  # else it is yet to come
                notes.append(f"{name} is missing")
            return otherwise
        try:
            return how(path)
        except _UNREADABLE as error:
            notes.append(f"{name} could not be read: {error}")
            return otherwise

    summary = read("summary.json", _read_object, None)
    history = read("events.jsonl", _read_history, History())
    status = str(summary["status"]) if summary and "status" in summary else INTERRUPTED
    error = summary.get("error") if summary else None
    if summary is not None and not summary.keys() >= _NEEDED:
        missing = ", ".join(sorted(_NEEDED - summary.keys()))
        notes.append(f"summary.json lacks {missing}")
        summary = None
    elif summary is None and history.num_events:
        summary = read("events.jsonl", summary_of_journal, None)
        if summary is not None:
            status, error = summary["status"], summary["error"]
            notes.append(
                "the run goes on; figures are worked out from its journal"
                if goes_on
                else "figures were worked out from the journal: the run was killed, or goes on"
            )
    if goes_on:
        status = RUNNING
    evaluations: list[dict[str, Any]] = []
    if (folder / EVALUATIONS).exists():  # most runs have none, which is nothing to note
        evaluations = read(EVALUATIONS, read_metrics, [])
    return RunFiles(
        folder=folder,
        status=status,
        error=error,
        summary=summary,
        config=read(".hydra/config.yaml", _read_config, {}),
        overrides=tuple(read(".hydra/overrides.yaml", _read_yaml, [])),
        metrics=read("metrics.jsonl", read_metrics, []),
        evaluations=evaluations,
        timeline=read("trace.json", read_timeline, Timeline()),
        history=history,
        samples=read(TRANSCRIPTS, _read_samples, []),
        notes=tuple(notes),
    )


def read_timeline(path: Path) -> Timeline:
    """Phases, memory, requests and environment steps of a trace; whole or broken off."""
    timeline = Timeline()
    kinds = {"request": timeline.requests, "environment step": timeline.environments}
    for event in read_trace(path):
        kind = event.get("cat")
        if kind == "phase":
            timeline.phases.append((event["name"], event["ts"] / 1e6, event["dur"] / 1e6))
        elif kind in kinds:
            times = kinds[kind].starts_s if event["ph"] == "b" else kinds[kind].ends_s
            times.append(event["ts"] / 1e6)
        elif event["name"] == MEMORY_COUNTER:
            timeline.memory.append((event["ts"] / 1e6, event["args"]))
    timeline.phases.sort(key=lambda span: span[1])
    timeline.memory.sort(key=lambda point: point[0])
    return timeline


def summary_of_journal(path: Path) -> dict[str, Any] | None:
    """What ``summary.json`` would say of a run that could not write it, as far as decisions go."""
    scheduler: Scheduler | None = None
    end_s = 0.0
    for entry in read_journal(path, check_chain=False):
        if scheduler is None:
            scheduler = Scheduler(entry.event.settings)  # type: ignore[attr-defined]
        scheduler.handle(entry.event)
        end_s = entry.event.time_s
    if scheduler is None:
        return None
    outcome = scheduler.swapper.outcome
    return {
        "status": outcome.status if outcome else INTERRUPTED,
        "error": outcome.error if outcome else None,
        "wall_s": end_s,
        **scheduler.summary(),
    }


def _read_history(path: Path) -> History:
    return read_history(read_journal(path, check_chain=False))


def _read_object(path: Path) -> dict[str, Any]:
    found = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(found, dict):
        raise ValueError("it holds no JSON object")
    return found


def _read_config(path: Path) -> Any:
    """With interpolations replaced by what they come to, where they can be."""
    tree = _read_yaml(path)
    register_arithmetic()
    try:
        return OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    except OmegaConfBaseException:
        return tree


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def _read_samples(folder: Path) -> list[TrajectorySample]:
    """Of the first step that was sampled, one in the middle, and the last."""
    return [sample for path in _chosen(sorted(folder.glob("step_*.parquet"))) for sample in path]


def _chosen(paths: list[Path]) -> Iterator[list[TrajectorySample]]:
    if not paths:
        return
    last = len(paths) - 1
    for index in sorted({round(last * i / (NUM_SAMPLED_STEPS - 1)) for i in range(3)}):
        yield read_transcripts(paths[index])
