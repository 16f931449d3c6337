"""Who had the device when, and what went on meanwhile: one picture, rows over one time axis."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from colocate.core.phases import Phase
from colocate.report.run_files import Intervals, MemoryPoint, PhaseSpan, Timeline
from colocate.report.style import FAINT, OWNER_COLOURS, SERIES, WIDE, Sheet, new_figure
from colocate.report.words import TENANT_WORDS, Owner, owner_of

STRIP_S = 60.0
_NUM_POINTS = 1500


def draw_timeline(timeline: Timeline, begin_s: float, end_s: float, sheet: Sheet = WIDE) -> Figure:
    """The rows for which the trace has something, between two times of the run."""
    has_memory = bool(timeline.memory)
    ratios = [0.6, 1.0, 1.0] + [1.4] * has_memory
    height_in = 1.35 * sum(ratios) + 0.6
    figure, rows = new_figure(height_in, sheet, height_ratios=ratios, sharex=True)
    _device(rows[0], timeline.phases, begin_s, end_s)
    _legend(figure, rows[0], sheet)
    _concurrency(rows[1], timeline.requests, begin_s, end_s, SERIES[2], "requests\nin flight")
    _concurrency(rows[2], timeline.environments, begin_s, end_s, SERIES[4], "environments\nbusy")
    if has_memory:
        _memory(rows[3], timeline.memory, begin_s, end_s)
    for row in rows[1:]:
        row.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=row is not rows[-1]))
    figure.align_ylabels()
    rows[-1].set_xlabel("seconds since the run began")
    rows[-1].set_xlim(begin_s, end_s)
    return figure


def strip_begin(timeline: Timeline) -> float:
    """Where a minute from the middle of what lies between start-up and the end begins.

    In start-up itself where the run came no further.
    """
    end_s = timeline.end_s
    started_s = max((s + d for name, s, d in timeline.phases if name == Phase.STARTING), default=0)
    if started_s >= end_s:
        started_s = 0.0
    return max(started_s, (started_s + end_s - STRIP_S) / 2)


def concurrency(intervals: Intervals, times_s: np.ndarray) -> np.ndarray:
    """How many intervals are open at each time; one that has not ended stays open."""
    starts = np.sort(np.frombuffer(intervals.starts_s)) if intervals.starts_s else np.empty(0)
    ends = np.sort(np.frombuffer(intervals.ends_s)) if intervals.ends_s else np.empty(0)
    begun = np.searchsorted(starts, times_s, side="right")
    return np.asarray(begun - np.searchsorted(ends, times_s, side="right"))


def _device(axes: Axes, phases: list[PhaseSpan], begin_s: float, end_s: float) -> None:
    for owner, colour in OWNER_COLOURS.items():
        spans = [
            (start_s, held_s)
            for name, start_s, held_s in phases
            if owner_of(Phase(name)) is owner and start_s < end_s and start_s + held_s > begin_s
        ]
        axes.broken_barh(spans, (0, 1), color=colour, linewidth=0)
    axes.set(yticks=[], ylim=(0, 1), ylabel="device")
    axes.set_title(f"{begin_s:.0f} s to {end_s:.0f} s", loc="left", fontsize=10, color=FAINT)
    axes.grid(visible=False)


def _legend(figure: Figure, axes: Axes, sheet: Sheet) -> None:
    """Beside the title, or above it where there is no room beside."""
    words = {
        Owner.ROLLOUT: "vLLM",
        Owner.TRAINING: "DeepSpeed",
        Owner.SWAP: "swap",
        Owner.OTHER: "neither",
    }
    handles = [Patch(color=OWNER_COLOURS[o], label=label) for o, label in words.items()]
    if sheet.is_narrow:
        figure.legend(
            handles=handles,
            frameon=False,
            loc="outside upper center",
            ncols=4,
            fontsize=8,
            columnspacing=1.2,
        )
        return
    axes.legend(
        handles=handles,
        frameon=False,
        loc="lower right",
        bbox_to_anchor=(1.0, 0.98),
        ncols=4,
        fontsize=9,
        borderaxespad=0.2,
    )


def _concurrency(
    axes: Axes, intervals: Intervals, begin_s: float, end_s: float, colour: str, label: str
) -> None:
    times_s = np.linspace(begin_s, end_s, _NUM_POINTS)
    counts = concurrency(intervals, times_s)
    axes.fill_between(times_s, counts, step="post", color=colour, alpha=0.85, linewidth=0)
    axes.set_ylabel(label)
    axes.set_ylim(0, 1.1 * max(1, counts.max()))


def _memory(axes: Axes, memory: list[MemoryPoint], begin_s: float, end_s: float) -> None:
    # A reading holds until the next, so the last one before the window belongs to it.
    before = [point for point in memory if point[0] < begin_s][-1:]
    shown = before + [point for point in memory if begin_s <= point[0] <= end_s]
    if not shown:
        return
    shown.append((end_s, shown[-1][1]))
    names = list(dict.fromkeys(name for _, tenants in shown for name in tenants))
    colours = {
        "engine": OWNER_COLOURS[Owner.ROLLOUT],
        "trainer": OWNER_COLOURS[Owner.TRAINING],
    }
    axes.stackplot(
        [time_s for time_s, _ in shown],
        [[tenants.get(name, 0) / 2**30 for _, tenants in shown] for name in names],
        labels=[TENANT_WORDS.get(name, name) for name in names],
        colors=[colours.get(name, OWNER_COLOURS[Owner.OTHER]) for name in names],
        step="post",
        alpha=0.85,
        linewidth=0,
    )
    axes.set_ylabel("memory, GiB")
    axes.set_ylim(0, axes.get_ylim()[1] * 1.25)
    axes.legend(frameon=False, loc="upper right", ncols=len(names), fontsize=8)
