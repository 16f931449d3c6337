"""The lives of trajectories: what waited for what, and which weights sampled which part."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import BoundaryNorm, Colormap, Normalize
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import MaxNLocator

from colocate.core.phases import Phase
from colocate.report.history import Life
from colocate.report.run_files import PhaseSpan
from colocate.report.style import FAINT, OWNER_COLOURS, WIDE, Sheet, new_figure
from colocate.report.words import Owner, counted, owner_of

_ENVIRONMENT = "#5c5f66"
_MAX_NAMED_VERSIONS = 12


def draw_lives(lives: Sequence[Life], phases: Sequence[PhaseSpan], sheet: Sheet = WIDE) -> Figure:
    """A row for each trajectory, over the seconds since it began.

    Upper half: requests at the engine, coloured by the version that sampled them, and
    environment steps. Behind it: when the device was training or swapping.
    """
    figure, (axes,) = new_figure(0.34 * len(lives) + (2.1 if sheet.is_narrow else 1.5), sheet)
    versions = sorted({s.version for life in lives for g in life.generations for s in g.spans})
    colours, norm = _scale(versions)
    for row, life in enumerate(lives):
        _background(axes, row, life, phases)
        _life(axes, row, life, colours, norm)
    axes.set_yticks(range(len(lives)), [_name(life) for life in lives], fontsize=8)
    axes.set_ylim(len(lives) - 0.4, -0.6)
    axes.set_xlim(left=0)
    axes.set_xlabel("seconds since the trajectory began")
    axes.grid(visible=False, axis="y")
    figure.legend(
        handles=[
            Patch(color=_ENVIRONMENT, label="in its environment"),
            Patch(color=OWNER_COLOURS[Owner.TRAINING], alpha=0.18, label="device trains"),
            Patch(color=OWNER_COLOURS[Owner.SWAP], alpha=0.25, label="device swaps"),
        ],
        frameon=False,
        loc="outside upper center",
        ncols=3,
        fontsize=8 if sheet.is_narrow else 9,
        columnspacing=1.2,
    )
    if versions:
        few = len(versions) <= _MAX_NAMED_VERSIONS
        bar = figure.colorbar(
            ScalarMappable(norm=norm, cmap=colours),
            ax=axes,
            location="bottom" if sheet.is_narrow else "right",
            fraction=0.03,
            pad=0.01,
        )
        bar.set_label("weight version that sampled", fontsize=9)
        bar.ax.tick_params(labelsize=8)
        if few:
            bar.set_ticks([v + 0.5 for v in range(versions[0], versions[-1] + 1)][:40])
            bar.set_ticklabels([str(v) for v in range(versions[0], versions[-1] + 1)][:40])
        else:
            bar.long_axis.set_major_locator(MaxNLocator(integer=True))
    return figure


def _scale(versions: Sequence[int]) -> tuple[Colormap, Normalize]:
    if not versions:
        return colormaps["viridis"], Normalize(0, 1)
    oldest, newest = versions[0], versions[-1]
    if newest - oldest < _MAX_NAMED_VERSIONS:
        edges = list(range(oldest, newest + 2))
        colours = colormaps["viridis"].resampled(max(2, len(edges) - 1))
        return colours, BoundaryNorm(edges if len(edges) > 2 else [oldest, oldest + 1], colours.N)
    return colormaps["viridis"], Normalize(oldest, newest)


def _background(axes: Axes, row: int, life: Life, phases: Sequence[PhaseSpan]) -> None:
    end_s = _end(life)
    for owner, alpha in ((Owner.TRAINING, 0.18), (Owner.SWAP, 0.25)):
        spans = []
        for name, start_s, held_s in phases:
            begin = max(start_s, life.began_s)
            end = min(start_s + held_s, end_s)
            if end > begin and owner_of(Phase(name)) is owner:
                spans.append((begin - life.began_s, end - begin))
        axes.broken_barh(
            spans, (row - 0.42, 0.84), color=OWNER_COLOURS[owner], alpha=alpha, linewidth=0
        )


def _life(axes: Axes, row: int, life: Life, colours: Colormap, norm: Normalize) -> None:
    axes.plot([0, _end(life) - life.began_s], [row, row], color=FAINT, linewidth=0.8, zorder=2)
    axes.broken_barh(
        [(start - life.began_s, end - start) for start, end in life.environments],
        (row - 0.08, 0.16),
        color=_ENVIRONMENT,
        linewidth=0,
        zorder=3,
    )
    for generation in life.generations:
        whole = sum(span.length for span in generation.spans)
        start = generation.start_s - life.began_s
        for span in generation.spans:
            width = (generation.end_s - generation.start_s) * span.length / whole
            axes.barh(
                row,
                width,
                left=start,
                height=0.6,
                color=colours(norm(span.version)),
                linewidth=0,
                zorder=4,
            )
            start += width


def _end(life: Life) -> float:
    last = [life.began_s, *(g.end_s for g in life.generations), *(e for _, e in life.environments)]
    return life.ended_s if life.ended_s is not None else max(last)


def _name(life: Life) -> str:
    return f"#{life.trajectory}: {counted(life.num_tokens, 'token')}, {life.ending}"
