"""``report.html`` of one run: what it was, what came of it, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from colocate.report.ending import run_facts
from colocate.report.history import Decision, History
from colocate.report.ledger import ledger_rows
from colocate.report.page import write_page
from colocate.report.plots import write_plots
from colocate.report.run_files import RunFiles, read_run
from colocate.report.swap_tables import decision_table, swap_cost_table
from colocate.report.tables import Column, Table
from colocate.report.transcript_view import transcripts_by_step
from colocate.report.transcripts import printable
from colocate.report.words import counted, duration, size

PAGE = "report.html"
MAX_REASONS = 30
MAX_NOTICES = 100

_SETUP = {
    "model": ("model.path", "model.embedded", "model.dtype"),
    "task": ("data.source", "environment.factory"),
    "steps, seed": ("steps", "seed"),
    "algorithm": (
        "algorithm.advantage",
        "algorithm.group_size",
        "algorithm.groups_per_step",
        "algorithm.correction.mode",
    ),
    "schedule": ("scheduler.policy", "scheduler.swap_interval", "buffer.max_staleness"),
    "trainer": (
        "trainer.zero_stage",
        "trainer.num_ranks",
        "trainer.num_minibatches",
        "trainer.learning_rate",
    ),
    "engine": (
        "inference.num_engines",
        "inference.tensor_parallel_size",
        "inference.kv_cache_memory_bytes",
        "inference.sleep",
    ),
    "device": ("device", "memory.budget_bytes"),
}
_CONTENTS = {
    "what": "What it was",
    "facts": "Results",
    "reward": "Reward",
    "evaluation": "Evaluation",
    "timeline": "Timeline",
    "phases": "Phases and swaps",
    "decisions": "Why each swap",
    "staleness": "Staleness",
    "mismatch": "Mismatch",
    "endings": "Endings",
    "longest": "Longest trajectories",
    "transcripts": "Transcripts",
    "notices": "Warnings",
    "ledger": "Memory ledger",
}


def write_run_report(
    folder: Path, *, optimum: float | None = None, target: Path | None = None
) -> Path:
    """Draws ``plots/`` and writes ``report.html`` from whatever files the run has left.

    Args:
        folder: The run's.
        optimum: The best mean reward that any agent can reach, where that is known.
        target: Where they are written; None: into the run's folder.

    Returns:
        The page's path.
    """
    run = read_run(folder)
    plots = write_plots(run, optimum=optimum, target=target)
    summary, history = run.summary, run.history
    context: dict[str, Any] = {
        "title": f"colocate run {folder.absolute().name}",
        "run": run,
        "plots": {name: plots.get(name) for name in _PLOTS},
        "steps": counted(summary["steps"], "training step") if summary else "",
        "wall": duration(summary["wall_s"]) if summary else "",
        "warnings": summary["warnings"] if summary else [],
        "setup": list(_setup(run)),
        "config": yaml.safe_dump(run.config, sort_keys=False) if run.config else "",
        "facts": list(run_facts(summary, run.metrics)) if summary and _has_begun(summary) else [],
        "num_swaps": counted(len(_complete(history)), "complete swap"),
        "swap_costs": swap_cost_table(_complete(history)),
        "decisions": decision_table(history.decisions),
        "mismatch": list(_mismatch(summary)) if summary else [],
        "endings": ending_table(history),
        "transcripts": list(transcripts_by_step(run.samples)),
        "notices": _notice_table(history),
        "ledger": _ledger_table(summary),
    }
    present = {
        "what": True,
        "timeline": plots.get("timeline"),
        "phases": plots.get("phases"),
        **{name: context[name] or plots.get(name) for name in ("mismatch",)},
        **{name: plots.get(name) for name in ("reward", "evaluation", "staleness", "longest")},
        **{
            name: context[name]
            for name in ("facts", "decisions", "endings", "transcripts", "notices", "ledger")
        },
    }
    context["contents"] = [(anchor, name) for anchor, name in _CONTENTS.items() if present[anchor]]
    return write_page((target or folder) / PAGE, "run.html.j2", context)


_PLOTS = (
    "reward",
    "evaluation",
    "timeline",
    "timeline_minute",
    "phases",
    "swaps",
    "staleness",
    "mismatch",
    "longest",
)


def ending_table(history: History) -> Table | None:
    """How many ended how, and why; by length too, since a bound may favour short ones."""
    if not history.endings:
        return None
    columns = [
        Column("ending"),
        Column("reason"),
        Column("trajectories", is_number=True),
        Column("tokens, mean", is_number=True),
        Column("tokens, most", is_number=True),
        Column("seconds, median", is_number=True),
        Column("seconds, most", is_number=True),
    ]
    rows = [
        [
            counted_ending.ending,
            printable(counted_ending.reason) or "-",
            f"{len(counted_ending.num_tokens):,}",
            f"{np.mean(counted_ending.num_tokens):.1f}",
            f"{max(counted_ending.num_tokens):,}",
            f"{np.median(counted_ending.durations_s):.2f}",
            f"{max(counted_ending.durations_s):.2f}",
        ]
        for counted_ending in history.endings[:MAX_REASONS]
    ]
    if rest := history.endings[MAX_REASONS:]:
        number = sum(len(each.num_tokens) for each in rest)
        rows.append(["others", f"{len(rest)} more reasons", f"{number:,}", "", "", "", ""])
    return Table(columns, rows)


def _complete(history: History) -> list[Decision]:
    return [decision for decision in history.decisions if decision.phase_s]


def _has_begun(summary: Mapping[str, Any]) -> bool:
    return bool(summary["trajectories"]["admitted"])


def _setup(run: RunFiles) -> Iterator[tuple[str, str]]:
    yield "folder", str(run.folder.absolute())
    if run.overrides:
        yield "command line", "colocate train " + " ".join(run.overrides)
    for label, paths in _SETUP.items():
        values = [(path.rpartition(".")[2], _look_up(run.config, path)) for path in paths]
        told = [f"{name} {_plain(value)}" for name, value in values if value is not None]
        if told:
            yield label, ", ".join(told)
    if run.summary and (software := run.summary.get("software")):
        yield "versions", ", ".join(f"{name} {version}" for name, version in software.items())
    if run.summary and "run_id" in run.summary:
        yield "run id", run.summary["run_id"]


def _look_up(config: Mapping[str, Any], path: str) -> Any:
    found: Any = config
    for key in path.split("."):
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{key} {each}" for key, each in value.items()) + ")"
    return str(value)


def _mismatch(summary: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    labels = {
        "mean_abs_logprob_diff": "mean |difference of log-probabilities|",
        "max_abs_logprob_diff": "largest |difference|",
        "k3_kl": "KL divergence (k3 estimate)",
    }
    for name, label in labels.items():
        value = summary["mismatch"].get(name)
        if value is not None:
            yield label, f"{value:.3g} nats"


def _notice_table(history: History) -> Table | None:
    if not history.notices:
        return None
    columns = [Column("at, s", is_number=True), Column("what"), Column("says")]
    rows = [
        [f"{time_s:.2f}", kind, printable(text)]
        for time_s, kind, text in history.notices[:MAX_NOTICES]
    ]
    if rest := len(history.notices) - len(rows):
        rows.append(["", "others", f"{rest} more in events.jsonl"])
    return Table(columns, rows)


def _ledger_table(summary: Mapping[str, Any] | None) -> Table | None:
    ledger = summary["memory"].get("ledger") if summary else None
    if not ledger or not ledger["now"]:
        return None
    rows = [[who, what, size(num_bytes)] for who, what, num_bytes in ledger_rows(ledger)]
    return Table([Column("who"), Column("what"), Column("size", is_number=True)], rows)
