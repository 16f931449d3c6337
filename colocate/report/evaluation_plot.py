"""The picture of a run's evaluations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from colocate.report.style import SERIES, WIDE, Sheet, new_figure


def draw_evaluations(rows: Sequence[Mapping[str, Any]], sheet: Sheet = WIDE) -> Figure:
    """pass@1, pass@k and mean reward by training step, each with its interval.

    Args:
        rows: Of ``eval.jsonl``, at least one.
    """
    figure, (shares, rewards) = new_figure(3.6, sheet, width_ratios=(1, 1))
    names = sorted(
        {name for row in rows for name in row if _is_share(name)},
        key=lambda name: int(name.removeprefix("pass@")),
    )
    for name, colour in zip(names, SERIES, strict=False):
        _draw(shares, rows, name, colour)
    shares.set(xlabel="training step", ylabel="share of prompts", title="Held-out prompts passed")
    shares.set_ylim(-0.03, 1.03)
    _draw(rewards, rows, "reward_mean", SERIES[2])
    rewards.set(xlabel="training step", ylabel="mean reward", title="Reward on held-out prompts")
    for axes in (shares, rewards):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(frameon=False, loc="best", fontsize=9)
    return figure


def _is_share(name: str) -> bool:
    return name.startswith("pass@") and name.removeprefix("pass@").isdecimal()


def _draw(axes: Axes, rows: Sequence[Mapping[str, Any]], name: str, colour: str) -> None:
    known = [row for row in rows if name in row]
    steps = [row["step"] for row in known]
    values = np.array([row[name] for row in known])
    low = np.array([row.get(f"{name}_low", np.nan) for row in known])
    high = np.array([row.get(f"{name}_high", np.nan) for row in known])
    axes.plot(steps, values, color=colour, marker="o", markersize=4, label=name.replace("_", " "))
    axes.vlines(steps, low, high, color=colour, linewidth=1.4, alpha=0.6)
    axes.fill_between(steps, low, high, color=colour, alpha=0.12, label="95% interval")
