"""What stands on the terminal when a run is over."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from colocate.core.phases import SWAP, Phase
from colocate.report.ledger import render_ledger
from colocate.report.records import read_metrics
from colocate.report.words import (
    TENANT_WORDS,
    count,
    counted,
    duration,
    evaluation_words,
    share,
    size_of,
)

_HEADLINES = {
    "completed": ("Done", "bold green"),
    "stopped": ("Stopped on request", "bold yellow"),
    "failed": ("Failed", "bold red"),
}
_FILES = {
    "report.html": "all of it on one page; open it in a browser",
    "summary.json": "everything in numbers",
    "metrics.jsonl": "each training step",
    "eval.jsonl": "each evaluation",
    "trace.json": "the timeline; open it at ui.perfetto.dev",
    "events.jsonl": "the journal; `colocate replay` re-checks it",
    "plots": "pictures",
    "trajectories": "samples of what the agent did",
    "model": "the model that was made here, before training",
    "checkpoints": "to resume from; `colocate export` makes a model folder of one",
    "logs": "what vLLM and DeepSpeed said",
}

_LAST_STEPS = 10


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
    steps = counted(summary["steps"], "training step")
    parts: list[RenderableType] = [
        Text(),
        Text(f"{headline}: {steps} in {duration(summary['wall_s'])}.", style=style),
    ]
    if summary["error"]:
        parts.append(Text(str(summary["error"]), style="red"))
    if summary["status"] == "stopped" and (run_dir / "checkpoints").exists():
        # A line of its own, so that it can be copied.
        parts += [
            Text("It goes on from its checkpoint with the same command and"),
            Text(f"  resume=auto hydra.run.dir={run_dir}"),
        ]
    if summary["trajectories"]["admitted"]:
        table = _grid()
        metrics = run_dir / "metrics.jsonl"
        rows = read_metrics(metrics) if metrics.exists() else []
        for label, value in run_facts(summary, rows):
            table.add_row(label, Text(value))
        parts += [Text(), table]
    resumed = summary["versions"]["trainer"] > summary["steps"]
    first_title = "When it went on" if resumed else "Before training"
    for title, transcript in ((first_title, before), ("After training", after)):
        if transcript and (title == first_title or transcript != before):
            parts += [Text(), Text(title, style="bold"), Text(transcript)]
    if summary["status"] == "failed" and summary["memory"]["ledger"]["now"]:
        parts += [Text(), render_ledger(summary["memory"]["ledger"])]
    for warning in summary["warnings"]:
        parts += [Text(), Text(f"Warning: {warning}", style="yellow")]
    parts += [Text(), Text("Results in ", style="bold").append(str(run_dir))]
    files = _grid()
    for name, meaning in _FILES.items():
        if (run_dir / name).exists():
            files.add_row(name, Text(meaning))
    parts.append(files)
    report = run_dir / "report.html"
    if report.exists():
        parts += [Text(), Text("Report: ", style="bold").append(str(report.absolute()))]
    return Group(*parts)


def _grid() -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim", no_wrap=True)
    table.add_column(overflow="fold")
    return table


def run_facts(
    summary: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]
) -> Iterable[tuple[str, str]]:
    """A run in some ten lines: what each is about, and what it says.

    Args:
        metrics: The rows of ``metrics.jsonl``, as far as they are known.
    """
    tokens = summary["tokens"]
    if summary["reward"]["first"] is not None:
        yield "mean reward", _reward(summary, metrics)
    if evaluated := summary.get("eval"):
        yield from _evaluations(evaluated)
    yield "device", _device_shares(summary)
    yield "swaps", f"{summary['swaps']:,} between vLLM and DeepSpeed{_swap_time(summary)}"
    yield "trajectories", _trajectories(summary["trajectories"])
    carried = counted(summary["partials"]["carried"], "trajectory", "trajectories")
    yield (
        "carried over",
        f"{carried} crossed a swap unfinished, with {counted(tokens['carried'], 'token')}",
    )
    if resumed := _resumed(summary.get("resumed")):
        yield "resumed with", resumed
    if restarts := _recoveries(summary.get("recoveries")):
        yield "started anew", restarts
    yield "staleness", _staleness(summary["staleness"])
    if summary["mismatch"]["mean_abs_logprob_diff"] is not None:
        yield "mismatch", _mismatch(summary["mismatch"])
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
            f"{counted(environment['steps'], 'step')}; {hidden} of their time went by during "
            "swaps and training",
        )
    memory = summary["memory"]
    if memory["awake"] is not None and memory["asleep"] is not None:
        yield "vLLM's memory", f"{size_of(memory['asleep'], memory['awake'])} kept while asleep"


def _reward(summary: Mapping[str, Any], metrics: Sequence[Mapping[str, Any]]) -> str:
    """From the first step to the last, or to the last few together: one step alone is noisy."""
    reward = summary["reward"]
    # A step that trained nothing but replays has no reward of its own.
    means = [row["reward_mean"] for row in metrics if "reward_mean" in row]
    best = "" if reward["best"] is None else f"best {reward['best']:.3f}"
    if summary["steps"] < 2 * _LAST_STEPS or len(means) < summary["steps"]:
        return f"from {reward['first']:.3f} to {reward['last']:.3f}" + (best and f" ({best})")
    last = sum(means[-_LAST_STEPS:]) / _LAST_STEPS
    notes = f"mean of the last {_LAST_STEPS} steps" + (best and f"; {best}")
    return f"from {reward['first']:.3f} to {last:.3f} ({notes})"


def _evaluations(evaluated: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    first, last, best = (evaluated[name] for name in ("first", "last", "best"))
    if first is not None:
        yield f"evaluation, step {first['step']:g}", evaluation_words(first)
    if last is not None and last["step"] != first["step"]:
        yield f"evaluation, step {last['step']:g}", evaluation_words(last)
        if best["step"] not in (first["step"], last["step"]):
            yield f"the best, step {best['step']:g}", evaluation_words(best)
    samples = evaluated["samples"]
    if samples["lost"] or samples["cut"]:
        told = f"{count(samples['lost'])} lost, {count(samples['cut'])} cut"
        reasons = [*evaluated["cut"], *evaluated["lost"]]
        yield "without a verdict", f"{told} (most often: {reasons[0]})"


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


def _resumed(resumed: Mapping[str, Any] | None) -> str:
    """What the checkpoint held and what became of its partials; "" where it held nothing."""
    if resumed is None or not resumed["finished"] + resumed["partials"] + resumed["begun"]:
        return ""
    text = (
        f"{count(resumed['finished'])} finished and {count(resumed['partials'])} partial "
        f"trajectories of the checkpoint, {counted(resumed['tokens'], 'token')}"
    )
    for name, words in (("restarted", "began again"), ("given_up", "had no place")):
        if resumed[name]:
            text += f"; {count(resumed[name])} {words}"
    if resumed["reasons"]:
        text += f" (most often: {next(iter(resumed['reasons']))})"
    return text


def _recoveries(recoveries: Mapping[str, Any] | None) -> str:
    """Which processes were lost and started anew, and what that cost; "" where none was."""
    if recoveries is None or not recoveries["engine"] + recoveries["trainer"]:
        return ""
    text = ", ".join(
        f"{TENANT_WORDS[process]} {counted(recoveries[process], 'time')}"
        for process in ("engine", "trainer")
        if recoveries[process]
    )
    if recoveries["rollbacks"]:
        lost = recoveries["abandoned"]
        text += (
            f"; {counted(lost['steps'], 'step')} and {counted(lost['tokens'], 'token')} were "
            "abandoned"
        )
    return f"{text} (most often: {next(iter(recoveries['causes']))})"


def _staleness(staleness: Mapping[str, Any]) -> str:
    histogram = staleness["histogram"]
    if not histogram:
        return f"nothing trained (bound {staleness['bound']})"
    fresh = share(histogram.get("0", 0), sum(histogram.values()))
    return (
        f"{fresh} of the trained tokens were fresh; the oldest lagged by "
        f"{staleness['max_trained_lag']} (bound {staleness['bound']})"
    )


def _mismatch(mismatch: Mapping[str, Any]) -> str:
    mean, largest = mismatch["mean_abs_logprob_diff"], mismatch["max_abs_logprob_diff"]
    engine, trainer = mismatch["engine_perplexity"], mismatch["trainer_perplexity"]
    return (
        f"on the same weights, log-probabilities of vLLM and DeepSpeed differ by {mean:.1e} in the "
        f"mean, {largest:.1e} at most; perplexity {engine:.4g} and {trainer:.4g}, k3 KL "
        f"{mismatch['k3_kl']:.1e}, effective sample size {share(mismatch['ess'], 1.0)}"
    )
