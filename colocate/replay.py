"""``colocate replay``: runs a journal through a fresh scheduler and an independent auditor."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from colocate.core.audit import Auditor, Violation
from colocate.core.events import Restored, RunStarted
from colocate.core.phases import ENDS, IllegalTransition
from colocate.core.scheduler import Scheduler
from colocate.core.trajectory import ProtocolError
from colocate.journal import Entry, JournalError, chain_at, read_journal

MAX_SHOWN = 10

INVARIANTS = ("conservation", "bound", "fidelity", "groups", "exactly once", "exclusion")


@dataclass(frozen=True, slots=True)
class Replay:
    """What a replay found.

    Attributes:
        is_whole: False where the run did not come to its end.
        origin: The journal of an earlier life, in the same folder, that the buffer which the run
            resumed with was compared with; None where it resumed none, or that life lies elsewhere.
    """

    num_events: int
    num_trajectories: int
    num_batches: int
    violations: list[Violation]
    is_whole: bool
    origin: str | None = None


def replay(run_dir: Path, *, check_chain: bool = True) -> Replay:
    """Replays ``events.jsonl`` and compares with ``summary.json`` where there is one.

    Raises:
        JournalError: where the file cannot be read as a journal at all.
    """
    auditor = Auditor()
    scheduler: Scheduler | None = None
    origin: Path | None = None
    for entry in read_journal(run_dir / "events.jsonl", check_chain=check_chain):
        if scheduler is None:
            if not isinstance(entry.event, RunStarted):
                raise JournalError("the journal does not begin with RunStarted")
            scheduler = Scheduler(entry.event.settings)
        problem = _decide_again(scheduler, entry)
        if problem is not None:
            auditor.violations.append(Violation(entry.seq, "replay", problem))
            break
        auditor.feed(entry.event, entry.actions)
        if isinstance(entry.event, Restored) and (origin := _origin_of(run_dir, entry.event)):
            problem = _compare_with_origin(origin, entry.event)
            if problem is not None:
                auditor.violations.append(Violation(entry.seq, "fidelity", problem))
    if scheduler is None:
        raise JournalError("the journal is empty")
    is_whole = scheduler.phase in ENDS
    summary = run_dir / "summary.json"
    if is_whole and summary.exists() and not auditor.violations:
        auditor.check_summary(json.loads(summary.read_text()))
    return Replay(
        num_events=auditor.num_events,
        num_trajectories=auditor.num_trajectories,
        num_batches=auditor.num_batches,
        violations=auditor.violations,
        is_whole=is_whole,
        origin=None if origin is None else origin.name,
    )


def _origin_of(run_dir: Path, restored: Restored) -> Path | None:
    """The earlier life's journal that has the line which the checkpoint was written after."""
    saved_after = restored.saved_after
    if saved_after is None:
        return None
    earlier = sorted(run_dir.glob("events.*.jsonl"))
    named = (path for path in earlier if chain_at(path, saved_after.seq) == saved_after.chain)
    return next(named, None)


def _compare_with_origin(origin: Path, restored: Restored) -> str | None:
    """Decides the earlier life again up to the checkpoint: what it had is what was restored."""
    assert restored.saved_after is not None
    scheduler: Scheduler | None = None
    for entry in read_journal(origin):
        if scheduler is None:
            assert isinstance(entry.event, RunStarted)
            scheduler = Scheduler(entry.event.settings)
        if (problem := _decide_again(scheduler, entry)) is not None:
            return f"{origin.name}, line {entry.seq + 1}: {problem}"
        if entry.seq == restored.saved_after.seq:
            break
    assert scheduler is not None
    if scheduler.snapshot() == restored.buffer:
        return None
    return (
        f"the buffer that was restored is not what line {restored.saved_after.seq + 1} of "
        f"{origin.name} left"
    )


def _decide_again(scheduler: Scheduler, entry: Entry) -> str | None:
    """What is wrong with the entry as the scheduler sees it, or None."""
    try:
        actions = tuple(scheduler.handle(entry.event))
    except (ProtocolError, IllegalTransition) as error:
        return f"{type(entry.event).__name__} is impossible here: {error}"
    if actions == entry.actions:
        return None
    for decided, written in zip(actions, entry.actions, strict=False):
        if decided != written:
            return f"the scheduler decides {decided}, the journal says {written}"
    return f"the scheduler decides {len(actions)} actions, the journal has {len(entry.actions)}"


def _kept_share(run_dir: Path) -> float:
    """Of the trajectories, in the journal of a simulation; a real run's keeps all."""
    path = run_dir / "summary.json"
    if not path.exists():
        return 1.0
    simulation = json.loads(path.read_text()).get("simulation") or {}
    return float(simulation.get("trace_fraction", 1.0))


def main(run_dir: Path) -> int:
    """Prints what was checked and found; returns the command's exit status."""
    if not (run_dir / "events.jsonl").is_file():
        print(
            f"colocate replay: {run_dir} is not a run's folder: it has no events.jsonl. Give the "
            "folder that the run printed at its end.",
            file=sys.stderr,
        )
        return 2
    if (kept := _kept_share(run_dir)) < 1:
        print(
            f"colocate replay: the journal in {run_dir} keeps a share of {kept} of what was "
            "simulated (sim.trace_fraction), and so cannot be replayed. The simulation itself "
            "checks the invariants (sim.audit).",
            file=sys.stderr,
        )
        return 2
    try:
        found = replay(run_dir)
    except JournalError as error:
        print(f"colocate replay: {error}", file=sys.stderr)
        return 1
    checked = (
        f"{found.num_events} events, {found.num_trajectories} trajectories and "
        f"{found.num_batches} trained batches checked"
    )
    if found.violations:
        print(f"{checked}; {len(found.violations)} violations:")
        for violation in found.violations[:MAX_SHOWN]:
            print(f"  line {violation.seq + 1}, {violation.invariant}: {violation.message}")
        return 1
    print(f"{checked}; every invariant holds ({', '.join(INVARIANTS)}).")
    if found.origin is not None:
        print(f"What it resumed with is, bit for bit, what {found.origin} left at the checkpoint.")
    if not found.is_whole:
        print("The journal ends before the run does: it was cut off, or is still being written.")
    return 0
