"""Draws a snapshot as a panel that someone who never saw the project can read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rich.box import ASCII, ROUNDED
from rich.console import Console, ConsoleOptions, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from colocate.core.types import MemorySample
from colocate.report.snapshot import RunSnapshot
from colocate.report.timeline import DeviceTimeline
from colocate.report.words import (
    PHASE_WORDS,
    STATE_WORDS,
    TENANT_WORDS,
    Owner,
    count,
    counted,
    duration,
    evaluation_words,
    owner_of,
    share,
    size,
    size_of,
)

_COLOURS = {Owner.ROLLOUT: "green", Owner.TRAINING: "blue", Owner.SWAP: "yellow"}
_TENANTS = {"engine": ("green", "V"), "trainer": ("blue", "D"), "other": ("magenta", "#")}
"""Colour and letter of each; vLLM's and DeepSpeed's are those of rollout and training."""
_LETTERS = {Owner.ROLLOUT: "R", Owner.TRAINING: "T", Owner.SWAP: "s", Owner.OTHER: "."}
_SPARKS = "▁▂▃▄▅▆▇█"
_LABEL_WIDTH = 12
_MAX_WIDTH = 100


@dataclass(frozen=True, slots=True)
class Glyphs:
    """What the terminal can show: characters beyond ASCII, and colours."""

    unicode: bool
    colour: bool

    @property
    def separator(self) -> str:
        return " · " if self.unicode else ", "

    @property
    def full(self) -> str:
        return "█" if self.unicode else "#"

    @property
    def empty(self) -> str:
        return "░" if self.unicode else "-"


@dataclass(frozen=True, slots=True)
class RunPanel:
    """A rich renderable of one snapshot; ``title`` names the run."""

    snapshot: RunSnapshot
    timeline: DeviceTimeline
    title: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        glyphs = Glyphs(unicode=not options.ascii_only, colour=console.color_system is not None)
        width = min(options.max_width, _MAX_WIDTH)
        room = max(10, width - _LABEL_WIDTH - 6)
        rows = Table.grid(padding=(0, 2, 0, 0))
        rows.add_column(style="dim", width=_LABEL_WIDTH, no_wrap=True)
        rows.add_column(overflow="fold")
        for label, value in _rows(self.snapshot, self.timeline, glyphs, room):
            rows.add_row(label, value)
        yield Panel(
            rows,
            box=ROUNDED if glyphs.unicode else ASCII,
            title=f"[bold]{self.title}[/bold]",
            title_align="left",
            subtitle=_times(self.snapshot, glyphs),
            subtitle_align="right",
            border_style="dim",
            width=width,
        )


def _rows(
    snapshot: RunSnapshot, timeline: DeviceTimeline, glyphs: Glyphs, room: int
) -> Iterable[tuple[str, Text]]:
    yield "step", _progress(snapshot, glyphs, room)
    yield "now", Text(PHASE_WORDS[snapshot.phase], style=_style(owner_of(snapshot.phase)))
    yield "device", _device_bar(timeline, snapshot.elapsed_s, glyphs, room)
    yield "last minute", _legend(timeline, snapshot.elapsed_s, glyphs)
    yield "reward", _reward(snapshot, glyphs, room)
    if snapshot.evaluation or snapshot.is_evaluating:
        yield "evaluation", _evaluation(snapshot)
    yield (
        "trajectories",
        _items(
            ((words, count(snapshot.trajectories.get(s, 0))) for s, words in STATE_WORDS.items()),
            glyphs,
        ),
    )
    yield (
        "ended",
        _items(((e, count(n)) for e, n in snapshot.endings.items() if n or e == "trained"), glyphs),
    )
    yield "staleness", _staleness(snapshot, glyphs)
    yield (
        "tokens",
        _items(
            (
                ("generated", count(snapshot.tokens_generated)),
                ("trained", count(snapshot.tokens_trained)),
                ("carried over swaps", count(snapshot.tokens_carried)),
            ),
            glyphs,
        ),
    )
    if snapshot.swap_cost_s is not None:
        yield "swap cost", _swap_cost(snapshot, glyphs)
    if snapshot.mismatch is not None:
        yield "mismatch", _mismatch(snapshot.mismatch)
    yield "memory", _memory(snapshot, glyphs, room)
    if snapshot.memory is not None and snapshot.memory.tenants:
        yield "", _tenants(snapshot.memory, glyphs)
    if snapshot.warnings:
        yield "warning", Text(snapshot.warnings[-1], style="yellow")


def _style(owner: Owner) -> str:
    return _COLOURS.get(owner, "")


def _times(snapshot: RunSnapshot, glyphs: Glyphs) -> str:
    parts = [counted(snapshot.num_swaps, "swap"), f"{duration(snapshot.elapsed_s)} elapsed"]
    if snapshot.eta_s is not None and snapshot.step < snapshot.num_steps:
        parts.append(f"about {duration(snapshot.eta_s)} left")
    return glyphs.separator.join(parts)


def _bar(fraction: float, length: int, glyphs: Glyphs, style: str) -> Text:
    filled = round(min(1.0, max(0.0, fraction)) * length)
    bar = Text(glyphs.full * filled, style=style)
    return bar.append(glyphs.empty * (length - filled), style="dim")


def _progress(snapshot: RunSnapshot, glyphs: Glyphs, room: int) -> Text:
    words = Text(f"{snapshot.step:,} of {snapshot.num_steps:,}  ", style="bold")
    length = max(8, min(40, room - len(words)))
    return words + _bar(snapshot.step / snapshot.num_steps, length, glyphs, "cyan")


def _device_bar(timeline: DeviceTimeline, now_s: float, glyphs: Glyphs, room: int) -> Text:
    """One column a second where there is room; two halves to a column where there are colours."""
    columns = min(room, 60)
    bar = Text()
    if not (glyphs.unicode and glyphs.colour):
        for owner in timeline.cells(now_s, columns):
            bar.append(" " if owner is None else _LETTERS[owner])
        return bar
    cells = timeline.cells(now_s, 2 * columns)
    for left, right in zip(cells[::2], cells[1::2], strict=True):
        colours = [_COLOURS.get(half, "default") if half else "default" for half in (left, right)]
        if colours == ["default", "default"]:
            bar.append(" ")
        elif colours[0] == colours[1]:
            bar.append("█", style=colours[0])
        else:
            # A left half block shows the left colour in front and the right one behind.
            bar.append("▌" if colours[0] != "default" else "▐", style=_half_style(*colours))
    return bar


def _half_style(left: str, right: str) -> str:
    if left == "default":
        return right
    return left if right == "default" else f"{left} on {right}"


def _legend(timeline: DeviceTimeline, now_s: float, glyphs: Glyphs) -> Text:
    """The bar's key, and what each took of the time that the bar shows."""
    shares = timeline.shares(now_s)
    legend = Text()
    for owner in (Owner.ROLLOUT, Owner.TRAINING, Owner.SWAP):
        key = glyphs.full if glyphs.unicode and glyphs.colour else _LETTERS[owner]
        legend.append("  " if legend else "").append(key, style=_COLOURS[owner])
        legend.append(f" {owner} {share(shares.get(owner, 0.0), 1.0)}")
    return legend


def _reward(snapshot: RunSnapshot, glyphs: Glyphs, room: int) -> Text:
    if snapshot.reward is None:
        return Text("none yet: it comes with the first training step", style="dim")
    words = Text(f"{snapshot.reward:.3f}", style="bold")
    if snapshot.best_reward is not None:
        words.append(f"  best {snapshot.best_reward:.3f}", style="dim")
    words.append("  ")
    if glyphs.unicode:
        words.append(sparkline(snapshot.recent_rewards, room - len(words)), style="cyan")
    elif len(snapshot.recent_rewards) > 1:
        first = snapshot.recent_rewards[0]
        words.append(f"({first:.3f} {len(snapshot.recent_rewards) - 1} steps before)")
    return words


def _evaluation(snapshot: RunSnapshot) -> Text:
    words = Text()
    if snapshot.evaluation:
        words.append(evaluation_words(snapshot.evaluation), style="bold")
        words.append(f"  after step {snapshot.evaluation['step']:g}", style="dim")
    if snapshot.is_evaluating:
        words.append("  " if words else "").append("going on; the swap waits for it", style="green")
    return words


def sparkline(values: Sequence[float], length: int) -> str:
    """The last ``length`` values as blocks, scaled from the smallest to the largest shown."""
    shown = values[-length:] if length > 0 else []
    if not shown:
        return ""
    low, high = min(shown), max(shown)
    if high == low:
        return _SPARKS[3] * len(shown)
    top = len(_SPARKS) - 1
    return "".join(_SPARKS[round((value - low) / (high - low) * top)] for value in shown)


def _staleness(snapshot: RunSnapshot, glyphs: Glyphs) -> Text:
    num_tokens = sum(snapshot.staleness.values())
    if not num_tokens:
        return Text(f"nothing trained yet (at most {snapshot.max_staleness} allowed)", style="dim")
    lags = [
        ("fresh" if lag == 0 else f"{lag} behind", share(n, num_tokens))
        for lag, n in sorted(snapshot.staleness.items())
    ]
    words = _items(lags, glyphs)
    return words.append(f"  (at most {snapshot.max_staleness} allowed)", style="dim")


def _swap_cost(snapshot: RunSnapshot, glyphs: Glyphs) -> Text:
    """Without training: what a swap costs beyond the work that it makes room for."""
    assert snapshot.swap_cost_s is not None
    assert snapshot.mean_swap_cost_s is not None
    return _items(
        (
            ("last", f"{snapshot.swap_cost_s:.2f} s"),
            ("mean", f"{snapshot.mean_swap_cost_s:.2f} s"),
            ("of the time", share(snapshot.swap_share, 1.0)),
        ),
        glyphs,
    )


def _mismatch(mean_abs: float) -> Text:
    words = Text(f"{mean_abs:.1e}", style="bold")
    return words.append("  between vLLM's and DeepSpeed's log-probabilities", style="dim")


def _memory(snapshot: RunSnapshot, glyphs: Glyphs, room: int) -> Text:
    sample = snapshot.memory
    if sample is None:
        return Text("not read yet", style="dim")
    words = _tenant_bar(sample, 20 if room < 70 else 30, glyphs)
    return words.append(f" {size_of(sample.used, sample.total)}")


def _tenants(sample: MemorySample, glyphs: Glyphs) -> Text:
    """The bar's key."""
    words = Text()
    for tenant, num_bytes in _shares_of_memory(sample).items():
        style, letter = _TENANTS[tenant]
        key = glyphs.full if glyphs.unicode and glyphs.colour else letter
        words.append("  " if words else "").append(key, style=style)
        words.append(f" {TENANT_WORDS[tenant]} ", style="dim").append(size(num_bytes))
    return words


def _shares_of_memory(sample: MemorySample) -> dict[str, int]:
    """What is used, by tenant; ``other`` is what belongs to none, where anything does."""
    known = {tenant: sample.tenants[tenant] for tenant in _TENANTS if tenant in sample.tenants}
    other = sample.used - sum(known.values())
    return {**known, "other": other} if known and other > 0 else known


def _tenant_bar(sample: MemorySample, length: int, glyphs: Glyphs) -> Text:
    """Each tenant's part of the device in its colour, or its letter; what is free stays empty."""
    shares = _shares_of_memory(sample) or {"other": sample.used}
    whole = max(sample.total, sum(shares.values()))
    bar = Text()
    held = 0
    for tenant, num_bytes in shares.items():
        style, letter = _TENANTS[tenant]
        # Ends are rounded, not lengths: the bar's length is right whatever the parts are.
        begin, held = round(length * held / whole), held + num_bytes
        cells = round(length * held / whole) - begin
        # Without colours letters tell the parts apart.
        glyph = glyphs.full if glyphs.unicode and glyphs.colour else letter
        bar.append(glyph * cells, style=style)
    return bar.append(glyphs.empty * (length - len(bar)), style="dim")


def _items(items: Iterable[tuple[str, str]], glyphs: Glyphs) -> Text:
    words = Text()
    for name, value in items:
        if words:
            words.append(glyphs.separator, style="dim")
        words.append(f"{name} ", style="dim").append(value)
    return words or Text("none yet", style="dim")
