"""The figures as tables on a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from colocate.report.words import share, size

PART_WORDS: Mapping[str, str] = {
    "park": "abort the requests in flight, collect what each has sampled",
    "sleep": "the engine gives its memory up",
    "load": "the trainer takes its state back",
    "offload": "the trainer gives up gradients and optimizer state",
    "wake weights": "the engine makes room for weights",
    "publish": "weights go from trainer to engine",
    "offload after push": "the trainer gives up parameters",
    "wake KV": "the engine takes its KV cache back",
    "measure": "memory is read after every part",
    "re-prefill": "parked requests are computed again, to their next token",
    "train": "one training step on a small batch",
    "verify": "log-probabilities of engine and trainer compared",
}

PUBLISH_WORDS: Mapping[str, str] = {
    "gather": "trainer: find or gather the shards",
    "copy": "trainer: copy them into the shared buffer",
    "checksum": "trainer: checksum what was copied",
    "receive_checksum": "engine: checksum what arrived",
    "load": "engine: vLLM's layer-wise reload",
    "finish": "engine: process what is left, check completeness",
}

TENANTS = ("engine", "trainer", "driver")


def show(figures: Mapping[str, Any], console: Console) -> None:
    """Prints everything that a person may want; the JSON has more."""
    for part in (
        _headline(figures),
        _swap(figures),
        _publishing(figures),
        _transport(figures),
        _memory(figures["rss"], "RAM"),
        *([_memory(figures["device_memory"], "GPU memory")] if _on_gpu(figures) else []),
    ):
        console.print()
        console.print(part)


def _on_gpu(figures: Mapping[str, Any]) -> bool:
    return bool(figures["machine"]["device"] == "cuda")


def describe(figures: Mapping[str, Any]) -> str:
    """What was measured, in one line."""
    setting, model = figures["setting"], figures["model"]
    plan = {"pause": "nothing evicted", "kv": "KV cache evicted"}.get(
        setting["plan"], f"sleep level {setting['plan']}"
    )
    return (
        f"{setting['model']} model ({size(model['num_bytes'])} of {model['dtype']} weights), "
        f"{plan}, ZeRO {setting['zero_stage']}, ranks: {setting['num_ranks']}, "
        f"engines: {setting['num_engines']}, KV cache {size(setting['kv_bytes'])}"
    )


def _headline(figures: Mapping[str, Any]) -> Text:
    swap, machine = figures["swap"], figures["machine"]
    text = Text(f"A swap takes {_time(swap['median_s'])} (median; ", style="bold")
    text.append(f"9 of 10 at most {_time(swap['p90_s'])})\n")
    text.append(f"{describe(figures)}\n", style="not bold")
    bare = " No requests were in flight, nothing was trained." if figures["setting"]["bare"] else ""
    before, after = machine["load_average"]
    text.append(
        f"{figures['swaps'] - figures['warm_up']} swaps, after {figures['warm_up']} of warm-up that"
        f" no figure includes.{bare} Load of the machine: {before:.1f}, at the end {after:.1f}, on "
        f"{machine['cpus']} CPUs.",
        style="not bold dim",
    )
    return text


def _swap(figures: Mapping[str, Any]) -> Table:
    table = _table("Where a swap's time goes", "part", "median", "p90", "share", "what happens")
    for part, times in figures["parts"].items():
        table.add_row(part, *_times(times), share(times["share"], 1), PART_WORDS[part])
    again = figures["reprefill"]
    if again is not None:
        table.add_row(
            "",
            "",
            "",
            "",
            f"{again['tokens']:,.0f} tokens of {again['requests']:.0f} requests, "
            f"{again['tokens_per_s']:,.0f} a second;\nthe first token after "
            f"{_time(again['first_token']['median_s'])}",
        )
    for part, times in figures["beside"].items():
        table.add_row(Text(part, style="dim"), *_times(times), "-", f"{PART_WORDS[part]}")
    return table


def _publishing(figures: Mapping[str, Any]) -> Table:
    publish = figures["publish"]
    title = (
        f"Publishing: {size(figures['model']['num_bytes'])} in {figures['model']['num_tensors']} "
        f"tensors, {_rate(publish['bytes_per_s'])}"
    )
    table = _table(title, "part", "median", "p90", "share", "what happens")
    for part, times in publish["parts"].items():
        words = PUBLISH_WORDS[part]
        table.add_row(part, *_times(times), share(times["share"], 1), words)
    table.caption = (
        "Shares of publishing's time. Both sides work at once, and messages and names take the "
        "rest: they need not add up to 100%."
    )
    return table


def _transport(figures: Mapping[str, Any]) -> Table:
    found = figures["transport"]
    title = f"Transport alone: {_rate(found['bytes_per_s'])}, against plain copies"
    table = _table(title, "plain copy", "rate", "transport is", "in the rounds", "of the best")
    for threads, rate in found["plain_copy"].items():
        low, high = found["share_of_plain_copy_range"][threads]
        share_of_it = _percent(found["share_of_plain_copy"][threads])
        spread = f"{_percent(low)} to {_percent(high)}"
        best = _percent(found["best"]["share_of_plain_copy"][threads])
        table.add_row(_copies("one copy", threads), _rate(rate), share_of_it, spread, best)
    for threads, rate in found["two_plain_copies"].items():
        share_of_it = _percent(found["share_of_two_copies"][threads])
        table.add_row(_copies("two in a row", threads), _rate(rate), share_of_it, "", "")
    table.caption = (
        f"Shard -> shared buffer -> engine, without checksums and reload, {found['rounds']} "
        "rounds. A plain copy is torch's copy_ of tensors of the same sizes into memory in use, in "
        "one process: with one thread, as either side of transport copies, and with a thread for "
        "each CPU, which is what both sides have together. The best are the highest rates of each, "
        "where other work on the machine disturbed least."
    )
    return table


def _copies(what: str, threads: str) -> str:
    return f"{what}, {'1 thread' if threads == '1' else f'{threads} threads (all CPUs)'}"


def _percent(value: float) -> str:
    return f"{100 * value:.1f}%"


def _memory(readings: Mapping[str, Mapping[str, Any]], what: str) -> Table:
    table = _table(
        f"{what} held, and its growth",
        *("", "median", "per swap", "95% interval", "first half", "second half", ""),
    )
    for name, found in _shown(readings):
        if found["slope"] is None:
            table.add_row(name, size(found["median"]), "-", "", "", "", "too few swaps")
            continue
        table.add_row(
            name,
            size(found["median"]),
            _growth(found["slope"]),
            f"{_growth(found['low'])} to {_growth(found['high'])}",
            *(_growth(half["slope"]) for half in found["halves"]),
            _verdict(found),
        )
    table.caption = (
        "Allocators and caches may grow for tens of swaps until they have what they need; a leak "
        "is the same in either half. --swaps 100 tells one from the other, and --bare leaves "
        "requests and training out."
    )
    return table


def _verdict(found: Mapping[str, Any]) -> Text:
    if not found["grows"]:
        return Text("not told from zero", style="green")
    second = found["halves"][1]
    if second["low"] <= 0:
        return Text("grows, in the second half not told from zero", style="green")
    return Text("grows", style="yellow")


def _shown(
    readings: Mapping[str, Mapping[str, Any]],
) -> Iterable[tuple[str, Mapping[str, Any]]]:
    """The engine in both of its states; of the others one is enough."""
    names = {
        "engine awake": "engine, awake",
        "engine asleep": "engine, asleep",
        "trainer awake": "trainer, offloaded",
        "trainer loaded": "trainer, loaded",
        "driver awake": "driver",
    }
    for key, name in names.items():
        if key in readings:
            yield name, readings[key]


def _table(title: str, *columns: str) -> Table:
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        caption_justify="left",
        box=None,
        padding=(0, 2, 0, 0),
    )
    for index, column in enumerate(columns):
        words = index in (0, len(columns) - 1)
        table.add_column(
            column, justify="left" if words else "right", no_wrap=index < len(columns) - 1
        )
    return table


def _times(times: Mapping[str, float]) -> tuple[str, str]:
    return _time(times["median_s"]), _time(times["p90_s"])


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"


def _rate(bytes_per_s: float) -> str:
    return f"{bytes_per_s / 1e9:.2f} GB/s"


def _growth(num_bytes: float) -> str:
    return f"{num_bytes / 1024:+.1f} KiB"
