"""What a run is at now, as the strip above its report: from small files, and so always fresh."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from colocate.core.types import MemorySample
from colocate.report.live_file import Live, read_live
from colocate.report.run_files import INTERRUPTED, RUNNING
from colocate.report.snapshot import RunSnapshot
from colocate.report.words import (
    PHASE_WORDS,
    TENANT_WORDS,
    count,
    counted,
    duration,
    owner_of,
    share,
    size,
    size_of,
)

WAITING = "waiting"
"""The status of a run that has written nothing yet."""
ELSEWHERE = "running elsewhere"
"""The status of a run that another machine began: whether it lives cannot be seen from here."""


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of a bar: whose, how much of it, and in words."""

    name: str
    percent: float
    says: str


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure with its name; ``parts`` is a bar below it."""

    name: str
    value: str
    note: str = ""
    parts: tuple[Part, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """What stands above the report.

    Attributes:
        status: As on the report's badge, or ``WAITING`` or ``ELSEWHERE``.
        what: What is going on, in words.
        owner: Who has the device: a colour.
        times: Elapsed and left, in words.
        progress: Percent of the training steps that are done; None where that is not known.
        steps: The same in words.
        jobs: Of a multirun: how many are in which state.
        warning: The last one.
    """

    status: str
    what: str
    owner: str = "other"
    times: str = ""
    progress: float | None = None
    steps: str = ""
    tiles: tuple[Tile, ...] = ()
    jobs: str = ""
    warning: str = ""


def strip_of_run(folder: Path) -> Strip:
    """Never raises for what the folder lacks."""
    live = read_live(folder)
    status = _status(folder, live)
    if live is None or status not in (RUNNING, ELSEWHERE):
        return Strip(status=status, what=_WHAT.get(status, ""))
    what = live.what
    if live.snapshot is not None:
        what = PHASE_WORDS[live.snapshot.phase]
    if status == ELSEWHERE:
        age_s = max(0.0, time.time() - live.written_s)
        what += f" (on {live.host}, {duration(age_s)} ago)"
    if live.snapshot is None:
        return Strip(status=status, what=what)
    return _strip_of(live.snapshot, status, what)


_WHAT = {
    INTERRUPTED: "its process is gone, and left no summary",
    WAITING: "nothing has been written yet",
}


def _status(folder: Path, live: Live | None) -> str:
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
        return str(summary["status"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    if live is None:
        return INTERRUPTED if (folder / "events.jsonl").exists() else WAITING
    alive = live.is_alive
    if alive is None:
        return ELSEWHERE
    return RUNNING if alive else INTERRUPTED


def _strip_of(snapshot: RunSnapshot, status: str, what: str) -> Strip:
    times = f"{duration(snapshot.elapsed_s)} elapsed"
    if snapshot.eta_s is not None and snapshot.step < snapshot.num_steps:
        times += f", about {duration(snapshot.eta_s)} left"
    return Strip(
        status=status,
        what=what,
        owner=str(owner_of(snapshot.phase)),
        times=times,
        progress=100 * snapshot.step / snapshot.num_steps if snapshot.num_steps else None,
        steps=f"step {snapshot.step:,} of {snapshot.num_steps:,}",
        tiles=tuple(_tiles(snapshot)),
        warning=snapshot.warnings[-1] if snapshot.warnings else "",
    )


def _tiles(snapshot: RunSnapshot) -> Iterator[Tile]:
    if snapshot.reward is not None:
        best = "" if snapshot.best_reward is None else f"best {snapshot.best_reward:.3f}"
        yield Tile("reward", f"{snapshot.reward:.3f}", best)
    states = snapshot.trajectories
    yield Tile(
        "requests in flight",
        count(states.get("generating", 0)),
        f"{count(states.get('queued', 0))} queued",
    )
    yield Tile("environments busy", count(states.get("environment", 0)))
    yield Tile(
        "trajectories ready",
        count(states.get("finished", 0)),
        f"{count(states.get('leased', 0))} in training",
    )
    ended = {ending: number for ending, number in snapshot.endings.items() if number}
    trained = ended.pop("trained", 0)
    rest = ", ".join(f"{count(number)} {ending}" for ending, number in ended.items())
    yield Tile("trajectories trained", count(trained), rest)
    yield _staleness(snapshot)
    swaps = counted(snapshot.num_swaps, "swap")
    if snapshot.swap_cost_s is not None and snapshot.mean_swap_cost_s is not None:
        yield Tile(
            "swap cost",
            f"{snapshot.swap_cost_s:.2f} s",
            f"mean {snapshot.mean_swap_cost_s:.2f} s, {share(snapshot.swap_share, 1.0)} of the "
            f"time, {swaps}",
        )
    else:
        yield Tile("swap cost", "-", swaps)
    yield Tile(
        "tokens trained",
        count(snapshot.tokens_trained),
        f"{count(snapshot.tokens_generated)} generated, "
        f"{count(snapshot.tokens_carried)} carried over swaps",
    )
    if snapshot.memory is not None:
        yield _memory(snapshot.memory)


def _staleness(snapshot: RunSnapshot) -> Tile:
    allowed = f"at most {snapshot.max_staleness} allowed"
    num_tokens = sum(snapshot.staleness.values())
    if not num_tokens:
        return Tile("staleness", "-", allowed)
    fresh = share(snapshot.staleness.get(0, 0), num_tokens)
    return Tile(
        "staleness", f"up to {max(snapshot.staleness)}", f"{fresh} of tokens fresh, {allowed}"
    )


def _memory(sample: MemorySample) -> Tile:
    known = {name: sample.tenants[name] for name in TENANT_WORDS if name in sample.tenants}
    other = sample.used - sum(known.values())
    if other > 0:
        known["other"] = other
    whole = max(sample.total, sum(known.values()), 1)
    parts = tuple(
        Part(name, round(100 * num_bytes / whole, 2), f"{TENANT_WORDS[name]} {size(num_bytes)}")
        for name, num_bytes in known.items()
    )
    return Tile("memory", size_of(sample.used, sample.total), "", parts)
