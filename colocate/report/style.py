"""The look that all pictures share."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """What a figure is drawn on.

    A figure keeps the size of its letters: the narrow sheet holds less beside each other, and is
    read on a telephone without being moved about.
    """

    width_in: float
    dpi: int
    is_narrow: bool = False


WIDE = Sheet(width_in=9.0, dpi=150)
NARROW = Sheet(width_in=4.6, dpi=180, is_narrow=True)


def new_figure(
    height: float,
    sheet: Sheet = WIDE,
    *,
    width_ratios: Sequence[float] = (1,),
    height_ratios: Sequence[float] = (1,),
    sharex: bool = False,
    sharey: bool = False,
) -> tuple[Figure, list[Axes]]:
    """Axes side by side or below each other; height in inches.

    On a narrow sheet those that were to stand side by side stand below each other, each as high as
    ``height``.
    """
    is_stacked = sheet.is_narrow and len(width_ratios) > 1
    if is_stacked:
        height *= len(width_ratios)
        width_ratios, height_ratios = (1,), (1,) * len(width_ratios)
    layout = ConstrainedLayoutEngine(h_pad=0.1 if is_stacked else None)
    figure = Figure(figsize=(sheet.width_in, height), layout=layout, dpi=sheet.dpi)
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


def legend_outside(figure: Figure, sheet: Sheet, **options: Any) -> None:
    """A legend beside the axes, or below them where there is no room beside."""
    if sheet.is_narrow:
        place: dict[str, Any] = {"loc": "outside lower center", "ncols": 2}
    else:
        place = {"loc": "outside right center"}
    figure.legend(frameon=False, fontsize=8, **place, **options)


def save(figure: Figure, path: Path) -> Path:
    figure.savefig(path)
    return path


def to_png(figure: Figure) -> bytes:
    written = io.BytesIO()
    figure.savefig(written, format="png")
    return written.getvalue()


def running_mean(values: Sequence[float], window: int) -> np.ndarray:
    """Mean over the last ``window`` values at each position; over fewer at the start."""
    sums = np.cumsum([0.0, *values])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(0, ends - window)
    return np.asarray((sums[ends] - sums[begins]) / (ends - begins))
