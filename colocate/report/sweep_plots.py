"""The pictures of a sweep: throughput against staleness, learning curves, the learning study."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from colocate.report.plots import Figures, Plot, save_plots
from colocate.report.records import with_own_trajectories
from colocate.report.statistics import Estimate, pareto_front
from colocate.report.style import (
    FAINT,
    NARROW,
    SERIES,
    WIDE,
    Sheet,
    legend_outside,
    new_figure,
    running_mean,
)
from colocate.report.sweep_jobs import SweepJob
from colocate.report.sweep_measures import (
    Group,
    Point,
    label_of,
    reward_after,
    sort_key,
    summarise,
    trained_by_step,
)

_STYLES = ("-", "--", ":", "-.")
_NUM_POINTS = 200


def write_sweep_plots(
    folder: Path, groups: Sequence[Group], budget: int | None, learned: Mapping[Point, Estimate]
) -> dict[str, Plot]:
    """Draws what the groups allow into ``folder/plots``, and returns the pictures by name.

    Args:
        budget: Trained trajectories after which the learning study compares.
        learned: Of each point, the reward after these.
    """
    if not groups:
        return {}
    wide, narrow = (figures_of(groups, budget, learned, sheet) for sheet in (WIDE, NARROW))
    return save_plots(folder / "plots", wide, narrow)


def figures_of(
    groups: Sequence[Group], budget: int | None, learned: Mapping[Point, Estimate], sheet: Sheet
) -> Figures:
    """The pictures that the groups allow, not yet written."""
    looks = _looks(groups)
    figures = {
        "pareto": (
            _pareto(groups, looks, sheet),
            "Throughput against staleness, one point a setting",
        ),
        "reward_by_time": (
            _curves(groups, looks, "seconds since the run began", _times, sheet),
            "Mean reward over wall time, one line a setting",
        ),
        "reward_by_trajectories": (
            _curves(groups, looks, "trained trajectories", trained_by_step, sheet),
            "Mean reward over trained trajectories, one line a setting",
        ),
    }
    if budget is not None and learned:
        figures["learning"] = (
            _learning(groups, learned, budget, sheet),
            f"Mean reward after {budget:,} trained trajectories, by setting",
        )
    return figures


@dataclass(frozen=True, slots=True)
class _Look:
    colour: str
    style: str
    marker: str


@dataclass(frozen=True, slots=True)
class _Axes:
    """Which swept key is the first dimension of a chart: the one with the most values."""

    main: int | None
    values: tuple[str, ...]
    rests: tuple[Point, ...]


def _dimensions(groups: Sequence[Group]) -> _Axes:
    points = [group.point for group in groups]
    num_keys = len(points[0])
    if not num_keys:
        return _Axes(main=None, values=("",), rests=((),))
    by_key = [list(dict.fromkeys(point[key][1] for point in points)) for key in range(num_keys)]
    main = max(range(num_keys), key=lambda key: len(by_key[key]))
    rests = tuple(dict.fromkeys(_rest(point, main) for point in points))
    return _Axes(main=main, values=tuple(sorted(by_key[main], key=sort_key)), rests=rests)


def _rest(point: Point, main: int | None) -> Point:
    return tuple(pair for key, pair in enumerate(point) if key != main)


def _value(point: Point, main: int | None) -> str:
    return "" if main is None else point[main][1]


def _looks(groups: Sequence[Group]) -> dict[Point, _Look]:
    """Colour by the key with the most values, line and marker by the others."""
    dimensions = _dimensions(groups)
    colours = dict(zip(dimensions.values, cycle(SERIES), strict=False))
    styles = dict(zip(dimensions.rests, cycle(_STYLES), strict=False))
    markers = dict(zip(dimensions.rests, cycle("osD^v"), strict=False))
    return {
        group.point: _Look(
            colour=colours[_value(group.point, dimensions.main)],
            style=styles[_rest(group.point, dimensions.main)],
            marker=markers[_rest(group.point, dimensions.main)],
        )
        for group in groups
    }


def _pareto(groups: Sequence[Group], looks: Mapping[Point, _Look], sheet: Sheet) -> Figure:
    figure, (axes,) = new_figure(5.4 if sheet.is_narrow else 4.6, sheet)
    known = []
    for group in groups:
        summary = summarise(group)
        if (lag := summary["mean_lag"]) and (throughput := summary["throughput"]):
            known.append((group, lag, throughput))
    for group, lag, throughput in known:
        look = looks[group.point]
        axes.errorbar(
            lag.mean,
            throughput.mean,
            xerr=lag.half_width,
            yerr=throughput.half_width,
            fmt="*" if group.is_adaptive else look.marker,
            markersize=15 if group.is_adaptive else 7,
            color=look.colour,
            elinewidth=1,
            capsize=2,
            label=group.label if sheet.is_narrow else None,
        )
    means = [(lag.mean, throughput.mean) for _, lag, throughput in known]
    front = pareto_front(means)
    axes.plot(
        [means[i][0] for i in front],
        [means[i][1] for i in front],
        color=FAINT,
        linewidth=1,
        linestyle="--",
        zorder=1,
        label="no other setting is both faster and fresher",
    )
    if any(group.is_adaptive for group, _, _ in known) and not sheet.is_narrow:
        axes.plot([], [], marker="*", markersize=12, linestyle="", color=FAINT, label="adaptive")
    axes.set(
        xlabel="mean lag of trained tokens, in versions",
        ylabel="trained trajectories per second",
        title="Throughput against staleness",
    )
    axes.margins(x=0.16, y=0.16)
    # Names beside the points would lie on each other where there is little room.
    if not sheet.is_narrow:
        _label_points(axes, [(group.label, means[i]) for i, (group, _, _) in enumerate(known)])
    figure.legend(
        frameon=False,
        loc="outside lower center",
        ncols=1 if sheet.is_narrow else 2,
        fontsize=8,
        markerscale=0.7 if sheet.is_narrow else 1,
    )
    return figure


def _label_points(axes: Axes, points: Sequence[tuple[str, tuple[float, float]]]) -> None:
    """Labels beside their points, towards the middle; of neighbours, by turns above and below."""
    left, right = axes.get_xlim()
    for index, (label, position) in enumerate(sorted(points, key=lambda each: each[1])):
        above = index % 2 == 0
        is_left = position[0] <= (left + right) / 2
        axes.annotate(
            label,
            position,
            xytext=(6 if is_left else -6, 8 if above else -12),
            textcoords="offset points",
            horizontalalignment="left" if is_left else "right",
            fontsize=8,
            bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.8},
        )


def _times(job: SweepJob) -> list[float]:
    return [row["time_s"] for row in job.metrics]


def _curves(
    groups: Sequence[Group],
    looks: Mapping[Point, _Look],
    xlabel: str,
    position: Callable[[SweepJob], Sequence[float]],
    sheet: Sheet,
) -> Figure:
    """Mean over seeds as far as all of them came, with each seed as a faint line."""
    figure, (axes,) = new_figure(4.2, sheet)
    longest = max(len(job.metrics) for group in groups for job in group.jobs)
    window = max(2, min(10, longest // 5))
    for group in groups:
        look = looks[group.point]
        lines = [
            _line(job, position(job), window)
            for job in group.jobs
            if with_own_trajectories(job.metrics)
        ]
        if not lines:
            continue
        if len(lines) > 1:
            for xs, ys in lines:
                axes.plot(xs, ys, color=look.colour, linestyle=look.style, linewidth=0.7, alpha=0.3)
        grid = np.linspace(max(x[0] for x, _ in lines), min(x[-1] for x, _ in lines), _NUM_POINTS)
        mean = np.mean([np.interp(grid, xs, ys) for xs, ys in lines], axis=0)
        axes.plot(
            grid, mean, color=look.colour, linestyle=look.style, linewidth=2, label=group.label
        )
    axes.set(xlabel=xlabel, ylabel=f"mean reward of the last {window} steps")
    axes.set_title("Reward; faint: single seeds")
    legend_outside(figure, sheet)
    return figure


def _line(job: SweepJob, positions: Sequence[float], window: int) -> tuple[np.ndarray, np.ndarray]:
    has_own = np.array(["reward_mean" in row for row in job.metrics])
    rewards = [row["reward_mean"] for row in with_own_trajectories(job.metrics)]
    return np.asarray(positions, dtype=float)[has_own], running_mean(rewards, window)


def _learning(
    groups: Sequence[Group], learned: Mapping[Point, Estimate], budget: int, sheet: Sheet
) -> Figure:
    """A dot and its interval for each setting, beside each other where one key is the same."""
    figure, (axes,) = new_figure(4.2, sheet)
    dimensions = _dimensions(groups)
    num_rests = len(dimensions.rests)
    for number, rest in enumerate(dimensions.rests):
        colour = SERIES[number % len(SERIES)]
        shift = 0.0 if num_rests == 1 else 0.6 * (number / (num_rests - 1) - 0.5)
        label: str | None = label_of(rest) if rest else None
        for group in groups:
            found = learned.get(group.point)
            if _rest(group.point, dimensions.main) != rest or found is None:
                continue
            x = dimensions.values.index(_value(group.point, dimensions.main)) + shift
            rewards = [reward_after(job, budget) for job in group.jobs]
            known = [reward for reward in rewards if reward is not None]
            axes.plot([x + 0.05] * len(known), known, ".", color=colour, alpha=0.35, markersize=5)
            axes.errorbar(
                x,
                found.mean,
                yerr=found.half_width,
                fmt="*" if group.is_adaptive else "o",
                markersize=12 if group.is_adaptive else 7,
                color=colour,
                capsize=4,
                label=label,
            )
            label = None
    axes.set_xticks(range(len(dimensions.values)), dimensions.values)
    if sheet.is_narrow and len(dimensions.values) > 3:
        axes.tick_params(axis="x", labelrotation=30)
    if dimensions.main is not None:
        axes.set_xlabel(groups[0].point[dimensions.main][0])
    axes.set_ylabel("mean reward")
    space = "\n" if sheet.is_narrow else " "
    axes.set_title(f"Reward after {budget:,} trained trajectories:{space}mean, 95% interval, seeds")
    axes.margins(x=0.1)
    axes.grid(visible=False, axis="x")
    if num_rests > 1:
        legend_outside(figure, sheet)
    return figure
