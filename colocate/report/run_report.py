"""``report.html`` of one run: what it was, what came of it, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from colocate.core.phases import SWAP, Phase
from colocate.report.ending import run_facts
from colocate.report.history import Decision, History
from colocate.report.ledger import ledger_rows
from colocate.report.page import write_page
from colocate.report.plots import write_plots
from colocate.report.run_files import RunFiles, read_run
from colocate.report.tables import Column, Table
from colocate.report.transcripts import TrajectorySample, Turn, printable, weights_of
from colocate.report.words import counted, duration, size

PAGE = "report.html"
MAX_REASONS = 30
MAX_NOTICES = 100
SAMPLES_PER_STEP = 2

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
# The number stands in a column of its own; what was offloaded is what the plan said.
_REPEATED = ("swap", "offloaded", "rollout_s", "num_batches")
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


def write_run_report(folder: Path, *, optimum: float | None = None) -> Path:
    """Draws ``plots/`` and writes ``report.html`` from whatever files the run has left.

    Args:
        folder: The run's.
        optimum: The best mean reward that any agent can reach, where that is known.

    Returns:
        The page's path.
    """
    run = read_run(folder)
    plots = write_plots(run, optimum=optimum)
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
        "transcripts": list(_transcripts(run.samples)),
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
    return write_page(folder / PAGE, "run.html.j2", context)


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


def swap_cost_table(decisions: list[Decision]) -> Table | None:
    """Seconds of each phase over complete swaps: mean, median, 95th percentile, most, sum."""
    if not decisions:
        return None
    names = ("phase", "mean", "median", "95%", "most", "in all")
    rows = []
    for label, phases in [
        *((phase.replace("_", " "), (phase,)) for phase in SWAP),
        ("swap without training", tuple(phase for phase in SWAP if phase is not Phase.TRAINING)),
    ]:
        seconds = np.array([sum(d.phase_s.get(p, 0.0) for p in phases) for d in decisions])
        figures = (
            seconds.mean(),
            np.median(seconds),
            np.percentile(seconds, 95),
            seconds.max(),
            seconds.sum(),
        )
        rows.append([label, *(f"{figure:.3f}" for figure in figures)])
    columns = [Column(name, is_number=bool(index)) for index, name in enumerate(names)]
    return Table(columns, rows)


def decision_table(decisions: list[Decision]) -> Table | None:
    """A line a swap, with every number that its lines in the journal carry.

    What differs between swaps has a column of its own; what a policy adds needs nothing here.
    """
    if not decisions:
        return None
    names = list(dict.fromkeys(name for decision in decisions for name in decision.facts))
    shown = [name for name in names if name not in _REPEATED]
    columns = [
        Column("swap", is_number=True),
        Column("at, s", is_number=True),
        Column("rollout, s", is_number=True),
        Column("batches"),
        Column("expired", is_number=True),
        Column("swap, s", is_number=True),
        *(Column(_title(name), is_number=_all_numbers(decisions, name)) for name in shown),
    ]
    rows = []
    for number, decision in enumerate(decisions, start=1):
        swap_s = sum(s for phase, s in decision.phase_s.items() if phase != Phase.TRAINING)
        rows.append(
            [
                str(decision.facts.get("swap", number)),
                f"{decision.time_s:.2f}",
                f"{decision.rollout_s:.2f}",
                ", ".join(map(str, decision.batches)) or "none",
                str(decision.num_expired),
                f"{swap_s:.2f}" if decision.phase_s else "not complete",
                *(_cell(name, decision.facts.get(name)) for name in shown),
            ]
        )
    return Table(columns, rows)


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


def _title(name: str) -> str:
    words = name.removesuffix("_bytes").removesuffix("_s").replace("_", " ")
    return f"{words}, s" if name.endswith("_s") else words


def _cell(name: str, value: Any) -> str:
    if value is None:
        return "-"
    if name.endswith("_bytes") and isinstance(value, int):
        return size(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_cell(str(key), each)}" for key, each in value.items()) or "-"
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell("", each) for each in value) or "none"
    return str(value.value if isinstance(value, Enum) else value)


def _all_numbers(decisions: list[Decision], name: str) -> bool:
    values = [decision.facts[name] for decision in decisions if name in decision.facts]
    known = [value for value in values if value is not None]
    return all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in known)


def _transcripts(samples: list[TrajectorySample]) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    for step, of_step in groupby(samples, key=lambda sample: sample.step):
        yield step, [_shown(sample) for sample in list(of_step)[:SAMPLES_PER_STEP]]


def _shown(sample: TrajectorySample) -> dict[str, Any]:
    reward = "no reward" if sample.reward is None else f"reward {sample.reward:.3f}"
    told = f"trajectory {sample.trajectory}: {reward}, {sample.ending}{weights_of(sample)}"
    return {
        "turns": [Turn(turn.speaker, printable_lines(turn.text)) for turn in sample.turns],
        "ending": told,
    }


def printable_lines(text: str) -> str:
    """As ``printable``, but lines stay lines; the last line's end is not shown."""
    return "\n".join(printable(line) for line in text.rstrip("\n").split("\n"))


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
