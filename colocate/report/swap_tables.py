"""What swaps cost, and why each came when it did, as tables."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

import numpy as np

from colocate.core.phases import SWAP, Phase
from colocate.report.history import Decision
from colocate.report.tables import Column, Table
from colocate.report.words import size

# The number stands in a column of its own; what was offloaded is what the plan said.
_REPEATED = ("swap", "offloaded", "rollout_s", "num_batches")


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
