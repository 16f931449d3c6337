"""The look that all pictures share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from colocate.report.words import Owner

OWNER_COLOURS = {
    Owner.ROLLOUT: "#2a9d6f",
    Owner.TRAINING: "#3465a4",
    Owner.SWAP: "#e9a23b",
    Owner.OTHER: "#b8b8b8",
}
SERIES = (
    "#3465a4",
    "#c2410c",
    "#2a9d6f",
    "#8e44ad",
    "#b8860b",
    "#d6336c",
    "#1098ad",
    "#5c5f66",
)
"""Colours of things that have no order, told apart by people who see few colours too."""

INK, FAINT, ACCENT = "#222222", "#8a8a8a", "#c2410c"
WIDTH_IN = 9.0
_DPI = 150


def new_figure(
    height: float,
    *,
    width: float = WIDTH_IN,
    width_ratios: Sequence[float] = (1,),
    height_ratios: Sequence[float] = (1,),
    sharex: bool = False,
    sharey: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Axes side by side or below each other; sizes in inches."""
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(
        len(height_ratios),
        len(width_ratios),
        squeeze=False,
        width_ratios=width_ratios,
        height_ratios=height_ratios,
        sharex=sharex,
        sharey=sharey,
    )
    axes = list(grid.flat)
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.spines[["left", "bottom"]].set_color(FAINT)
        one.tick_params(colors=INK, labelsize=9)
        one.grid(visible=True, color="#e6e6e6", linewidth=0.7)
        one.set_axisbelow(True)
    return figure, axes


def save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=_DPI)
    return path


def running_mean(values: Sequence[float], window: int) -> np.ndarray:
    """Mean over the last ``window`` values at each position; over fewer at the start."""
    sums = np.cumsum([0.0, *values])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(0, ends - window)
    return np.asarray((sums[ends] - sums[begins]) / (ends - begins))
