"""The pictures of a run, drawn from its files alone: ``plots/*.png``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from colocate.core.phases import Phase
from colocate.report.records import read_metrics
from colocate.report.trace import MEMORY_COUNTER, read_trace
from colocate.report.words import TENANT_WORDS, Owner, owner_of

_OWNER_COLOURS = {
    Owner.ROLLOUT: "#2a9d6f",
    Owner.TRAINING: "#3465a4",
    Owner.SWAP: "#e9a23b",
    Owner.OTHER: "#b8b8b8",
}
_INK, _FAINT, _LINE = "#222222", "#8a8a8a", "#c2410c"
_STRIP_S = 60.0
_DPI = 150


def write_plots(run_dir: Path, *, optimum: float | None = None) -> list[Path]:
    """Draws what the run's files allow, and returns the pictures' paths.

    A run that trained nothing has no picture of rewards and staleness.

    Args:
        run_dir: Holds ``summary.json``, and ``metrics.jsonl`` and ``trace.json`` where the run
            came so far.
        optimum: The best mean reward that any agent can reach, where that is known.
    """
    summary = json.loads((run_dir / "summary.json").read_text())
    metrics_path, trace_path = run_dir / "metrics.jsonl", run_dir / "trace.json"
    metrics = read_metrics(metrics_path) if metrics_path.exists() else []
    phases, memory = _read_timeline(trace_path) if trace_path.exists() else ([], [])
    figures = {"phases": _phases(summary, phases, memory)}
    if metrics:
        figures["reward"] = _reward(metrics, optimum)
        figures["staleness"] = _staleness(metrics, summary["staleness"])
    folder = run_dir / "plots"
    folder.mkdir(exist_ok=True)
    paths = []
    for name, figure in figures.items():
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=_DPI)
        paths.append(path)
    return paths


def running_mean(values: Sequence[float], window: int) -> np.ndarray:
    """Mean over the last ``window`` values at each position; over fewer at the start."""
    sums = np.cumsum([0.0, *values])
    ends = np.arange(1, len(values) + 1)
    begins = np.maximum(0, ends - window)
    return np.asarray((sums[ends] - sums[begins]) / (ends - begins))


def _with_own_trajectories(metrics: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A step that trained nothing but replays has neither a reward nor a lag of its own."""
    return [row for row in metrics if "reward_mean" in row]


def _reward(metrics: Sequence[Mapping[str, Any]], optimum: float | None) -> Figure:
    own = _with_own_trajectories(metrics)
    steps = [row["step"] for row in own]
    rewards = [row["reward_mean"] for row in own]
    window = max(2, min(10, len(rewards) // 5))
    figure, (axes,) = _figure(7.0, 3.6)
    axes.plot(steps, rewards, color=_FAINT, linewidth=1, marker=".", markersize=3, label="step")
    axes.plot(
        steps,
        running_mean(rewards, window),
        color=_OWNER_COLOURS[Owner.TRAINING],
        linewidth=2.2,
        label=f"mean of the last {window} steps",
    )
    if optimum is not None:
        axes.axhline(
            optimum, color=_LINE, linewidth=1, linestyle="--", label=f"optimum {optimum:g}"
        )
    axes.set(xlabel="training step", ylabel="mean reward", title="Reward")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, loc="lower right")
    return figure


def _staleness(metrics: Sequence[Mapping[str, Any]], staleness: Mapping[str, Any]) -> Figure:
    figure, (over_time, whole) = _figure(9.0, 3.4, width_ratios=(2, 1))
    own = _with_own_trajectories(metrics)
    steps = [row["step"] for row in own]
    bound = staleness["bound"]
    oldest = [row["lag_max"] for row in own]
    over_time.axhline(
        bound, color=_LINE, linewidth=1.2, linestyle="--", label=f"bound {bound}", zorder=3
    )
    over_time.step(steps, oldest, where="mid", color=_FAINT, linewidth=1, label="oldest token")
    over_time.plot(
        steps,
        [row["lag_mean"] for row in own],
        color=_OWNER_COLOURS[Owner.TRAINING],
        linewidth=2,
        label="mean of tokens",
    )
    over_time.set(xlabel="training step", ylabel="lag in versions", title="Staleness by step")
    over_time.set_ylim(-0.05 * max(1, bound), max(1, bound, *oldest) * 1.3)
    over_time.xaxis.set_major_locator(MaxNLocator(integer=True))
    over_time.yaxis.set_major_locator(MaxNLocator(integer=True))
    over_time.legend(frameon=False, loc="upper right", ncols=3, fontsize=8)

    num_tokens = {int(lag): number for lag, number in staleness["histogram"].items()}
    lags = list(range(max([bound, *num_tokens]) + 1))
    percents = [100 * num_tokens.get(lag, 0) / max(1, sum(num_tokens.values())) for lag in lags]
    bars = whole.bar([str(lag) for lag in lags], percents, color=_OWNER_COLOURS[Owner.TRAINING])
    whole.bar_label(bars, fmt="%.1f%%", fontsize=8, color=_INK)
    whole.set(xlabel="lag in versions", ylabel="% of trained tokens", title="Whole run")
    whole.set_ylim(0, 1.12 * max([1.0, *percents]))
    return figure


_PhaseSpan = tuple[str, float, float]
"""Name, start and length of a phase, in seconds."""

_MemoryPoint = tuple[float, Mapping[str, float]]
"""Time in seconds, and bytes by tenant."""


def _read_timeline(path: Path) -> tuple[list[_PhaseSpan], list[_MemoryPoint]]:
    phases: list[_PhaseSpan] = []
    memory: list[_MemoryPoint] = []
    for event in read_trace(path):
        if event.get("cat") == "phase":
            phases.append((event["name"], event["ts"] / 1e6, event["dur"] / 1e6))
        elif event["name"] == MEMORY_COUNTER:
            memory.append((event["ts"] / 1e6, event["args"]))
    return phases, sorted(memory, key=lambda point: point[0])


def _phases(
    summary: Mapping[str, Any], phases: Sequence[_PhaseSpan], memory: Sequence[_MemoryPoint]
) -> Figure:
    num_rows = 1 + bool(phases) + bool(phases and memory)
    figure, axes = _figure(
        9.0, 4.0 + 1.6 * (num_rows - 1), height_ratios=(3.2, 0.8, 1.6)[:num_rows]
    )
    _phase_bars(axes[0], summary["phase_s"])
    if not phases:
        return figure
    end_s = max(start_s + held_s for _, start_s, held_s in phases)
    begin_s = max(min(start_s for _, start_s, _ in phases), _strip_begin(phases, end_s))
    strip_end_s = min(end_s, begin_s + _STRIP_S)
    _phase_strip(axes[1], phases, begin_s, strip_end_s)
    if memory:
        _memory(axes[2], memory, begin_s, strip_end_s)
        axes[1].tick_params(labelbottom=False)
    axes[-1].set_xlabel("seconds since the run began")
    return figure


def _strip_begin(phases: Sequence[_PhaseSpan], end_s: float) -> float:
    """A minute from the middle of what lies between start-up and the end.

    Of start-up itself where the run came no further.
    """
    started_s = max((s + d for name, s, d in phases if name == Phase.STARTING), default=0.0)
    if started_s >= end_s:
        started_s = 0.0
    return max(started_s, (started_s + end_s - _STRIP_S) / 2)


def _phase_bars(axes: Axes, phase_s: Mapping[str, float]) -> None:
    total_s = sum(phase_s.values()) or 1.0
    names = list(phase_s)
    bars = axes.barh(
        [name.replace("_", " ") for name in names],
        [phase_s[name] for name in names],
        color=[_OWNER_COLOURS[owner_of(Phase(name))] for name in names],
    )
    labels = [f"{held_s:.1f} s, {100 * held_s / total_s:.1f}%" for held_s in phase_s.values()]
    axes.bar_label(bars, labels, padding=4, fontsize=8, color=_INK)
    axes.invert_yaxis()
    axes.set(xlabel="seconds", title="Where the time went")
    axes.set_xlim(0, 1.2 * max([1e-9, *phase_s.values()]))
    axes.grid(visible=False, axis="y")
    patches = [
        Patch(color=_OWNER_COLOURS[owner], label=label)
        for owner, label in (
            (Owner.ROLLOUT, "vLLM has the device"),
            (Owner.TRAINING, "DeepSpeed has the device"),
            (Owner.SWAP, "swap"),
            (Owner.OTHER, "neither"),
        )
    ]
    axes.legend(handles=patches, frameon=False, loc="lower right", fontsize=8)


def _phase_strip(axes: Axes, phases: Sequence[_PhaseSpan], begin_s: float, end_s: float) -> None:
    for owner, colour in _OWNER_COLOURS.items():
        spans = [(s, d) for name, s, d in phases if owner_of(Phase(name)) is owner]
        axes.broken_barh(spans, (0, 1), color=colour, linewidth=0)
    axes.set(title=f"Who had the device, {begin_s:.0f} s to {end_s:.0f} s", yticks=[], ylim=(0, 1))
    axes.set_xlim(begin_s, end_s)
    axes.grid(visible=False)


def _memory(axes: Axes, memory: Sequence[_MemoryPoint], begin_s: float, end_s: float) -> None:
    names = list(dict.fromkeys(name for _, tenants in memory for name in tenants))
    colours = {
        "engine": _OWNER_COLOURS[Owner.ROLLOUT],
        "trainer": _OWNER_COLOURS[Owner.TRAINING],
    }
    axes.stackplot(
        [time_s for time_s, _ in memory],
        [[tenants.get(name, 0) / 2**30 for _, tenants in memory] for name in names],
        labels=[TENANT_WORDS.get(name, name) for name in names],
        colors=[colours.get(name, _OWNER_COLOURS[Owner.OTHER]) for name in names],
        step="post",
        alpha=0.85,
        linewidth=0,
    )
    axes.set(ylabel="memory, GiB")
    axes.set_xlim(begin_s, end_s)
    axes.legend(frameon=False, loc="upper right", ncols=len(names), fontsize=8)
    axes.set_ylim(0, axes.get_ylim()[1] * 1.25)


def _figure(
    width: float,
    height: float,
    *,
    width_ratios: Sequence[float] = (1,),
    height_ratios: Sequence[float] = (1,),
) -> tuple[Figure, list[Axes]]:
    """Axes side by side or below each other, with the look that all pictures share."""
    figure = Figure(figsize=(width, height), layout="constrained")
    grid = figure.subplots(
        len(height_ratios),
        len(width_ratios),
        squeeze=False,
        width_ratios=width_ratios,
        height_ratios=height_ratios,
    )
    axes = list(grid.flat)
    for one in axes:
        one.spines[["top", "right"]].set_visible(False)
        one.spines[["left", "bottom"]].set_color(_FAINT)
        one.tick_params(colors=_INK, labelsize=9)
        one.grid(visible=True, color="#e6e6e6", linewidth=0.7)
        one.set_axisbelow(True)
    return figure, axes
