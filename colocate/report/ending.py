"""What stands on the terminal when a run is over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from colocate.core.phases import SWAP, Phase
from colocate.report.words import count, duration, share, size_of

_HEADLINES = {
    "completed": ("Done", "bold green"),
    "stopped": ("Stopped on request; a checkpoint is written", "bold yellow"),
    "failed": ("Failed", "bold red"),
}
_FILES = {
    "summary.json": "everything in numbers",
    "metrics.jsonl": "each training step",
    "trace.json": "the timeline; open it at ui.perfetto.dev",
    "plots": "pictures",
    "trajectories": "samples of what the agent did",
    "checkpoints": "to resume from, or to export",
    "logs": "what vLLM and DeepSpeed said",
}


def render_ending(
    summary: Mapping[str, Any],
    run_dir: Path,
    *,
    before: str | None = None,
    after: str | None = None,
) -> RenderableType:
    """A short table in words, a transcript from before and one from after, and where things are.

    Args:
        summary: As in ``summary.json``.
        run_dir: The run's folder; only what it really holds is listed.
        before: A transcript from the first training step.
        after: One from the last.
    """
    headline, style = _HEADLINES[summary["status"]]
    parts: list[RenderableType] = [
        Text(),
        Text(
            f"{headline}: {summary['steps']:,} training steps in {duration(summary['wall_s'])}.",
            style=style,
        ),
    ]
    if summary["error"]:
        parts.append(Text(str(summary["error"]), style="red"))
    table = _grid()
    for label, value in _facts(summary):
        table.add_row(label, Text(value))
    parts += [Text(), table]
    for title, transcript in (("Before training", before), ("After training", after)):
        if transcript:
            parts += [Text(), Text(title, style="bold"), Text(transcript)]
    parts += [Text(), Text("Results in ", style="bold").append(str(run_dir))]
    files = _grid()
    for name, meaning in _FILES.items():
        if (run_dir / name).exists():
            files.add_row(name, Text(meaning))
    parts.append(files)
    return Group(*parts)


def _grid() -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def _facts(summary: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    reward, trajectories, tokens = summary["reward"], summary["trajectories"], summary["tokens"]
    if reward["first"] is not None:
        best = f" (best {reward['best']:.3f})" if reward["best"] is not None else ""
        yield "mean reward", f"from {reward['first']:.3f} to {reward['last']:.3f}{best}"
    yield "device", _device_shares(summary)
    yield "swaps", f"{summary['swaps']:,} between vLLM and DeepSpeed{_swap_time(summary)}"
    yield "trajectories", _trajectories(trajectories)
    yield (
        "carried over",
        f"{count(summary['partials']['carried'])} trajectories crossed a swap unfinished, with "
        f"{count(tokens['carried'])} tokens",
    )
    yield "staleness", _staleness(summary["staleness"])
    yield (
        "tokens",
        f"{count(tokens['generated'])} generated, {count(tokens['trained'])} trained, "
        f"{count(tokens['discarded'])} discarded",
    )
    environment = summary["environment"]
    if environment["busy_s"]:
        hidden = share(environment["hidden_s"], environment["busy_s"])
        yield (
            "environments",
            f"{count(environment['steps'])} steps; {hidden} of their time passed behind swaps "
            "and training",
        )
    memory = summary["memory"]
    if memory["awake"] is not None and memory["asleep"] is not None:
        yield "vLLM's memory", f"{size_of(memory['asleep'], memory['awake'])} kept while asleep"


def _device_shares(summary: Mapping[str, Any]) -> str:
    phase_s = summary["phase_s"]
    total_s = sum(phase_s.values())
    swap_s = _swap_s(phase_s)
    parts = {
        "rollout": phase_s[Phase.ROLLOUT],
        "training": phase_s[Phase.TRAINING],
        "swapping": swap_s,
        "starting and closing": phase_s[Phase.STARTING] + phase_s[Phase.CLOSING],
    }
    return ", ".join(f"{name} {share(part, total_s)}" for name, part in parts.items())


def _swap_s(phase_s: Mapping[str, float]) -> float:
    return sum(phase_s[phase] for phase in SWAP if phase != Phase.TRAINING)


def _swap_time(summary: Mapping[str, Any]) -> str:
    if not summary["swaps"]:
        return ""
    return f", {_swap_s(summary['phase_s']) / summary['swaps']:.2f} s each"


def _trajectories(ended: Mapping[str, int]) -> str:
    shown = [
        f"{count(number)} {name}"
        for name, number in ended.items()
        if number and name not in ("admitted", "replayed")
    ]
    return f"{count(ended['admitted'])} begun: " + (", ".join(shown) or "none ended")


def _staleness(staleness: Mapping[str, Any]) -> str:
    histogram = staleness["histogram"]
    if not histogram:
        return f"nothing trained (bound {staleness['bound']})"
    fresh = share(histogram.get("0", 0), sum(histogram.values()))
    return (
        f"{fresh} of the trained tokens were fresh; the oldest lagged by "
        f"{staleness['max_trained_lag']} (bound {staleness['bound']})"
    )
