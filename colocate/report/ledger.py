"""The memory ledger as a table: who holds what now, and what each was measured to need."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.table import Table

from colocate.report.words import size

_MODES = {
    "0": "awake",
    "kv": "without its KV cache",
    "1": "asleep, level 1",
    "2": "asleep, level 2",
}


def render_ledger(ledger: Mapping[str, Any]) -> Table:
    """A table of the ledger in ``summary.json`` (``memory.ledger``)."""
    table = Table(title="Memory ledger", title_justify="left", box=None, padding=(0, 2, 0, 0))
    table.add_column("who", style="dim")
    table.add_column("what")
    table.add_column("bytes", justify="right")
    for who, what, num_bytes in ledger_rows(ledger):
        table.add_row(who, what, size(num_bytes))
    return table


def ledger_rows(ledger: Mapping[str, Any]) -> Iterator[tuple[str, str, int]]:
    now = ledger["now"]
    if now is not None:
        yield "device", "in all", now["total"]
        yield "", "used now", now["used"]
        for tenant in ("engine", "trainer", "strangers"):
            if tenant in now:
                yield "", f"of which {tenant}", now[tenant]
        yield "", "kept free (memory.margin_bytes)", now["margin"]
    for mode, num_bytes in ledger["engine"].items():
        yield "engine", _MODES[mode], num_bytes
    trainer = ledger["trainer"]
    for name, what in (("loaded", "loaded"), ("peak", "at its peak, training")):
        if trainer[name] is not None:
            yield "trainer", what, trainer[name]
    for parts, num_bytes in trainer["without"].items():
        if parts != "nothing":
            yield "trainer", f"at rest without {parts.replace('+', ', ')}", num_bytes
    for part, held in ledger["parts"].items():
        yield "part", f"{part}: when on the device", held["resident"]
        yield "", f"{part}: now", held["now"]
    if now is not None and now["host_used"] is not None:
        yield "host", "RAM held by the run", now["host_used"]
        if now["host_free"] is not None:
            yield "", "RAM it may still take", now["host_free"]
