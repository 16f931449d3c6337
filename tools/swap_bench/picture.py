"""The figures as a picture: ``bench_swap.png``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tools.swap_bench.table import describe

_COLOURS: Mapping[str, str] = {
    "park": "#c2410c",
    "sleep": "#e9a23b",
    "load": "#8fb3dd",
    "offload": "#3465a4",
    "wake weights": "#bfe3cf",
    "publish": "#7b4fa3",
    "offload after push": "#1d3f6e",
    "wake KV": "#2a9d6f",
    "measure": "#b8b8b8",
    "re-prefill": "#d98cb3",
}
_MEMORY: Mapping[str, tuple[str, str, str]] = {
    "engine awake": ("engine, awake", "#2a9d6f", "-"),
    "engine asleep": ("engine, asleep", "#2a9d6f", ":"),
    "trainer loaded": ("trainer, loaded", "#3465a4", "-"),
    "trainer awake": ("trainer, offloaded", "#3465a4", ":"),
    "driver awake": ("driver", "#8a8a8a", "-"),
}
_INK, _FAINT = "#222222", "#8a8a8a"
_DPI = 150


def draw(figures: Mapping[str, Any], path: Path) -> None:
    """Writes a PNG: what each swap took, by part, and the RAM that each process held."""
    knows_growth = all(figures["rss"][name]["slope"] is not None for name in _MEMORY)
    heights = (3, 2, 2) if knows_growth else (3, 2)
    figure = Figure(figsize=(10.0, 1.0 + 1.2 * sum(heights)), layout="constrained")
    figure.suptitle(describe(figures), fontsize=10, color=_INK)
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    for axes in panels:
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(_FAINT)
        axes.tick_params(colors=_INK, labelsize=9)
        axes.grid(visible=True, axis="y", color="#e6e6e6", linewidth=0.7)
        axes.set_axisbelow(True)
    _draw_times(panels[0], figures)
    _draw_memory(panels[1], figures)
    if knows_growth:
        _draw_growth(panels[2], figures)
    panels[-1].set_xlabel("swap")
    panels[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.savefig(path, dpi=_DPI)


def _draw_times(axes: Axes, figures: Mapping[str, Any]) -> None:
    swaps = figures["each_swap"]
    numbers = [swap["number"] for swap in swaps]
    below = np.zeros(len(swaps))
    bars = []
    for part, times in figures["parts"].items():
        heights = np.array([swap["seconds"].get(part, 0.0) for swap in swaps])
        label = f"{part}, {100 * times['share']:.1f}%"
        bars.append(
            axes.bar(numbers, heights, 0.9, below, color=_COLOURS[part], label=label, linewidth=0)
        )
        below += heights
    median = figures["swap"]["median_s"]
    axes.axhline(median, color=_INK, linewidth=0.8, linestyle="--")
    axes.annotate(
        f"median {median:.2f} s",
        (1, median),
        (0, 3),
        xycoords=("axes fraction", "data"),
        textcoords="offset points",
        ha="right",
        fontsize=8,
        color=_INK,
    )
    axes.set(ylabel="seconds", title="What each swap took")
    # As they are stacked: the last on top.
    axes.legend(
        handles=bars[::-1],
        title="part, share of a swap",
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        fontsize=8,
        title_fontsize=8,
    )
    _mark_warm_up(axes, figures["warm_up"])


def _draw_memory(axes: Axes, figures: Mapping[str, Any]) -> None:
    for name, (label, colour, line) in _MEMORY.items():
        numbers, held = _readings(figures, name)
        axes.plot(numbers, held, color=colour, linestyle=line, linewidth=1.8, label=label)
    axes.set(ylabel="MiB", title="RAM that each holds (RSS without mapped files)")
    axes.set_ylim(bottom=0)
    _legend(axes, None)
    _shade_warm_up(axes, figures["warm_up"])


def _draw_growth(axes: Axes, figures: Mapping[str, Any]) -> None:
    """The same readings, enlarged: what came since the warm-up."""
    skipped = figures["warm_up"]
    for name, (label, colour, line) in _MEMORY.items():
        numbers, held = _readings(figures, name)
        growth = _growth(figures["rss"][name])
        axes.plot(
            numbers[skipped:],
            held[skipped:] - held[skipped],
            color=colour,
            linestyle=line,
            linewidth=1.8,
            label=f"{label}: {growth}",
        )
    axes.set(ylabel="MiB", title="The same, since the warm-up ended")
    low, high = axes.get_ylim()
    axes.set_ylim(min(low, -0.5), max(high, 0.5))
    _legend(axes, "growth per swap")
    _shade_warm_up(axes, skipped)


def _readings(figures: Mapping[str, Any], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Numbers of the swaps, and MiB."""
    swaps = figures["each_swap"]
    held = np.array([swap["rss"][name] for swap in swaps]) / 2**20
    return np.array([swap["number"] for swap in swaps]), held


def _legend(axes: Axes, title: str | None) -> None:
    axes.legend(
        title=title,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
        frameon=False,
        fontsize=8,
        title_fontsize=8,
    )


def _growth(found: Mapping[str, Any]) -> str:
    return f"{found['slope'] / 1024:+.1f} KiB" if found["grows"] else "none"


def _shade_warm_up(axes: Axes, count: int) -> None:
    axes.axvspan(0.5, count + 0.5, color="#f2f2f2", zorder=0, linewidth=0)


def _mark_warm_up(axes: Axes, count: int) -> None:
    _shade_warm_up(axes, count)
    axes.annotate(
        "warm-up",
        (0.5 + count / 2, 1.0),
        (0, -10),
        xycoords=("data", "axes fraction"),
        textcoords="offset points",
        ha="center",
        fontsize=8,
        color=_FAINT,
    )
