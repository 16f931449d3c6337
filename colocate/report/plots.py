"""The pictures of a run, drawn from its files alone: ``plots/*.png``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from colocate.core.phases import SWAP, Phase
from colocate.report.evaluation_plot import draw_evaluations
from colocate.report.history import Decision
from colocate.report.lives_plot import draw_lives
from colocate.report.records import with_own_trajectories
from colocate.report.run_files import RunFiles
from colocate.report.style import (
    ACCENT,
    FAINT,
    INK,
    NARROW,
    OWNER_COLOURS,
    SERIES,
    WIDE,
    Sheet,
    legend_outside,
    new_figure,
    running_mean,
    save,
    to_png,
)
from colocate.report.timeline_plot import STRIP_S, draw_timeline, strip_begin
from colocate.report.words import Owner, owner_of

MAX_SWAPS_DRAWN = 120


@dataclass(frozen=True, slots=True)
class Plot:
    """A picture in ``plots/``.

    Attributes:
        says: What it shows, for those who cannot see it.
        narrow: The same as PNG for a narrow window.
    """

    name: str
    path: Path
    says: str
    narrow: bytes


def write_plots(
    run: RunFiles, *, optimum: float | None = None, target: Path | None = None
) -> dict[str, Plot]:
    """Draws what the run's files allow, and returns the pictures by name.

    A run that trained nothing has no picture of rewards and staleness, and one that trained no
    token of a step's own weights none of mismatch.

    Args:
        run: As ``read_run`` found it.
        optimum: The best mean reward that any agent can reach, where that is known.
        target: Where ``plots/`` is made; None: in the run's folder.
    """
    return save_plots(
        (target or run.folder) / "plots",
        figures_of(run, WIDE, optimum=optimum),
        figures_of(run, NARROW, optimum=optimum),
    )


Figures = dict[str, tuple[Figure, str]]
"""By name, with what each shows."""


def save_plots(folder: Path, wide: Figures, narrow: Figures) -> dict[str, Plot]:
    """Writes the wide ones as ``folder/NAME.png``; both have the same names."""
    if wide:
        folder.mkdir(exist_ok=True)
    return {
        name: Plot(
            name=name,
            path=save(figure, folder / f"{name}.png"),
            says=says,
            narrow=to_png(narrow[name][0]),
        )
        for name, (figure, says) in wide.items()
    }


def figures_of(run: RunFiles, sheet: Sheet, *, optimum: float | None = None) -> Figures:
    """The pictures that the run's files allow, not yet written."""
    figures: Figures = {}
    timeline = run.timeline
    if run.summary:
        bars = _phase_bars(run.summary["phase_s"], sheet)
        figures["phases"] = (bars, "Seconds in each phase, and their share of the run")
    if timeline.phases:
        figures["timeline"] = (
            draw_timeline(timeline, 0.0, timeline.end_s, sheet),
            "The whole run: who had the device, requests, environments, memory",
        )
        begin_s = strip_begin(timeline)
        if timeline.end_s > 1.5 * STRIP_S:
            figures["timeline_minute"] = (
                draw_timeline(timeline, begin_s, min(timeline.end_s, begin_s + STRIP_S), sheet),
                "One minute from the middle of the run, in detail",
            )
    if run.metrics:
        figures["reward"] = (_reward(run.metrics, optimum, sheet), "Mean reward by training step")
        if run.summary:
            figures["staleness"] = (
                _staleness(run.metrics, run.summary["staleness"], sheet),
                "Lag of trained tokens by training step, and their histogram",
            )
        warn_above = run.summary["mismatch"].get("warn_above") if run.summary else None
        if mismatch := _mismatch(run.metrics, warn_above, sheet):
            figures["mismatch"] = (
                mismatch,
                "Log-probabilities of the engine against the trainer's, by training step",
            )
    if run.evaluations:
        figures["evaluation"] = (
            draw_evaluations(run.evaluations, sheet),
            "Share of held-out prompts passed, and mean reward on them, with 95% intervals",
        )
    if any(decision.phase_s for decision in run.history.decisions):
        figures["swaps"] = (
            _swaps(run.history.decisions, sheet),
            "What each swap cost, by phase, training left out",
        )
    if run.history.longest:
        figures["longest"] = (
            draw_lives(run.history.longest, timeline.phases, sheet),
            "The trajectories that took the longest; spans coloured by weight version",
        )
    return figures


def _reward(metrics: Sequence[Mapping[str, Any]], optimum: float | None, sheet: Sheet) -> Figure:
    own = with_own_trajectories(metrics)
    steps = [row["step"] for row in own]
    rewards = [row["reward_mean"] for row in own]
    window = max(2, min(10, len(rewards) // 5))
    figure, (axes,) = new_figure(3.6, sheet)
    axes.plot(steps, rewards, color=FAINT, linewidth=1, marker=".", markersize=4, label="step")
    axes.plot(
        steps,
        running_mean(rewards, window),
        color=OWNER_COLOURS[Owner.TRAINING],
        linewidth=2.2,
        label=f"mean of the last {window} steps",
    )
    if optimum is not None:
        axes.axhline(
            optimum, color=ACCENT, linewidth=1, linestyle="--", label=f"optimum {optimum:g}"
        )
    axes.set(xlabel="training step", ylabel="mean reward", title="Reward")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False, loc="best", fontsize=9)
    return figure


def _staleness(
    metrics: Sequence[Mapping[str, Any]], staleness: Mapping[str, Any], sheet: Sheet
) -> Figure:
    figure, (over_time, whole) = new_figure(3.6, sheet, width_ratios=(2, 1))
    own = with_own_trajectories(metrics)
    steps = [row["step"] for row in own]
    bound = staleness["bound"]
    oldest = [row["lag_max"] for row in own]
    over_time.axhline(
        bound, color=ACCENT, linewidth=1.2, linestyle="--", label=f"bound {bound}", zorder=3
    )
    over_time.step(steps, oldest, where="mid", color=FAINT, linewidth=1, label="oldest token")
    over_time.plot(
        steps,
        [row["lag_mean"] for row in own],
        color=OWNER_COLOURS[Owner.TRAINING],
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
    bars = whole.bar([str(lag) for lag in lags], percents, color=OWNER_COLOURS[Owner.TRAINING])
    if len(lags) <= 5:
        whole.bar_label(bars, fmt="%.1f%%", fontsize=8, color=INK)
    whole.set(xlabel="lag in versions", ylabel="% of trained tokens", title="Whole run")
    whole.set_ylim(0, 1.12 * max([1.0, *percents]))
    whole.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True))
    return figure


def _mismatch(
    metrics: Sequence[Mapping[str, Any]], warn_above: float | None, sheet: Sheet
) -> Figure | None:
    """On the left what the warning is about, on the right what weights suffer from it.

    None where no step trained tokens of its own version.
    """
    rows = [row for row in metrics if row.get("mismatch_num_tokens")]
    if not rows:
        return None
    steps = [row["step"] for row in rows]
    figure, (differences, ratios) = new_figure(3.4, sheet, width_ratios=(1, 1))
    for name, label, colour in (
        ("mismatch_max_abs_logprob_diff", "largest of a step", FAINT),
        ("mismatch_mean_abs_logprob_diff", "mean", SERIES[0]),
        ("mismatch_k3_kl", "KL (k3 estimate)", SERIES[1]),
    ):
        # An agreement to the last bit has no place on a logarithmic axis.
        values = [row[name] if row[name] > 0 else np.nan for row in rows]
        differences.plot(steps, values, color=colour, marker=".", label=label)
    if warn_above is not None:
        differences.axhline(
            warn_above, color=ACCENT, linewidth=1, linestyle="--", label="warns above (mean)"
        )
    differences.set_yscale("log")
    differences.set(xlabel="training step", ylabel="nats", title="Engine against trainer")
    lowest = [row["mismatch_ratio_min"] for row in rows]
    highest = [row["mismatch_ratio_max"] for row in rows]
    ratios.fill_between(
        steps, lowest, highest, color=FAINT, alpha=0.35, label="ratio, least to largest"
    )
    sizes = [row["mismatch_ess"] for row in rows]
    ratios.plot(steps, sizes, color=SERIES[0], marker=".", label="effective sample size")
    ratios.set(xlabel="training step", title="Importance weights, same weights")
    ratios.ticklabel_format(axis="y", useOffset=False)
    for axes in (differences, ratios):
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(
            frameon=False,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.2),
            ncols=2,
            fontsize=8 if sheet.is_narrow else 9,
            columnspacing=1.2,
        )
    return figure


def _phase_bars(phase_s: Mapping[str, float], sheet: Sheet) -> Figure:
    figure, (axes,) = new_figure(3.8, sheet)
    total_s = sum(phase_s.values()) or 1.0
    names = list(phase_s)
    bars = axes.barh(
        [name.replace("_", " ") for name in names],
        [phase_s[name] for name in names],
        color=[OWNER_COLOURS[owner_of(Phase(name))] for name in names],
    )
    labels = [f"{held_s:.1f} s, {100 * held_s / total_s:.1f}%" for held_s in phase_s.values()]
    axes.bar_label(bars, labels, padding=4, fontsize=8, color=INK)
    axes.invert_yaxis()
    axes.set(xlabel="seconds", title="Where the time went")
    room = 1.4 if sheet.is_narrow else 1.2
    axes.set_xlim(0, room * max([1e-9, *phase_s.values()]))
    axes.grid(visible=False, axis="y")
    _owner_legend(figure, sheet)
    return figure


def _owner_legend(figure: Figure, sheet: Sheet) -> None:
    words = {
        Owner.ROLLOUT: "vLLM has the device",
        Owner.TRAINING: "DeepSpeed has the device",
        Owner.SWAP: "swap",
        Owner.OTHER: "neither",
    }
    patches = [Patch(color=OWNER_COLOURS[owner], label=label) for owner, label in words.items()]
    # Below, since any of the bars may be the longest.
    figure.legend(
        handles=patches,
        frameon=False,
        loc="outside lower center",
        ncols=2 if sheet.is_narrow else 4,
        fontsize=8,
    )


def _swaps(decisions: Sequence[Decision], sheet: Sheet) -> Figure:
    """Stacked bars, one a swap; of many swaps the last, since what grows shows there."""
    complete = [
        (number, decision.phase_s)
        for number, decision in enumerate(decisions, start=1)
        if decision.phase_s
    ]
    shown = complete[-MAX_SWAPS_DRAWN:]
    left_out = len(complete) - len(shown)
    figure, (axes,) = new_figure(4.0 if sheet.is_narrow else 3.6, sheet)
    numbers = [number for number, _ in shown]
    floor = [0.0] * len(shown)
    parts = [phase for phase in SWAP if phase is not Phase.TRAINING]
    for phase, colour in zip(parts, SERIES, strict=False):
        seconds = [phase_s.get(phase, 0.0) for _, phase_s in shown]
        axes.bar(numbers, seconds, bottom=floor, color=colour, width=0.85, label=_spaced(phase))
        floor = [low + high for low, high in zip(floor, seconds, strict=True)]
    title = "What each swap cost, training left out"
    axes.set(
        xlabel="swap",
        ylabel="seconds",
        title=f"{title} (the last {len(shown)})" if left_out else title,
    )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend_outside(figure, sheet)
    return figure


def _spaced(phase: Phase) -> str:
    return phase.replace("_", " ")
