"""``colocate simulate``: one simulated run in its folder, and its exit status."""

from __future__ import annotations

import gc
import logging
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from colocate.assembly import core_settings
from colocate.config import RunConfig
from colocate.core.actions import Action
from colocate.core.audit import Auditor
from colocate.core.events import BatchTrained, Event
from colocate.core.scheduler import Scheduler
from colocate.core.swap import Outcome
from colocate.report.display import make_display
from colocate.report.ending import render_ending
from colocate.report.live_file import NAME as LIVE_FILE
from colocate.report.live_file import Both, LiveFile
from colocate.report.records import write_summary
from colocate.report.run_report import write_run_report
from colocate.sim.cluster import Cluster, Watcher
from colocate.sim.episodes import ScriptSource
from colocate.sim.fit import UnfitRunError, fit_run
from colocate.sim.record import SimRecorder
from colocate.sim.world import World, make_world

logger = logging.getLogger(__name__)

SUMMARY_SCHEMA = 1

_SAY_EVERY_S = 10.0


class Audit:
    """Checks the invariants as the simulation goes; ends it at the first that is violated."""

    def __init__(self) -> None:
        self.auditor = Auditor()

    def on_event(self, event: Event, actions: Sequence[Action], scheduler: Scheduler) -> None:
        self.auditor.feed(event, actions)
        if self.auditor.violations:
            found = self.auditor.violations[0]
            raise AssertionError(f"event {found.seq}, {found.invariant}: {found.message}")


class _Progress:
    """A line now and then, in real time."""

    def __init__(self, steps: int, say: Any) -> None:
        self._steps = steps
        self._say = say
        self._said_s = time.monotonic()

    def on_event(self, event: Event, actions: Sequence[Action], scheduler: Scheduler) -> None:
        if type(event) is not BatchTrained or time.monotonic() - self._said_s < _SAY_EVERY_S:
            return
        self._said_s = time.monotonic()
        self._say(
            f"step {event.version} of {self._steps}, {scheduler.books.admitted:,} trajectories, "
            f"{event.time_s:,.0f} simulated seconds"
        )


def run(config: RunConfig, run_dir: Path) -> int:
    """Simulates one run; ``summary.json`` is written in every case but an exit status of 2."""
    run_dir = run_dir.absolute()
    run_dir.mkdir(parents=True, exist_ok=True)
    if (run_dir / "events.jsonl").exists():
        print(
            f"colocate simulate: {run_dir} holds a run already; take another folder "
            "(hydra.run.dir=PATH)",
            file=sys.stderr,
        )
        return 2
    try:
        world, scripts = _world(config)
    except UnfitRunError as error:
        print(f"colocate simulate: {error}", file=sys.stderr)
        return 2
    display = Both(
        make_display(config.logger.display, title="colocate"), LiveFile(run_dir / LIVE_FILE)
    )
    try:
        display.starting("simulating")
        summary = _simulate(config, run_dir, world, scripts, display.starting)
        write_summary(run_dir / "summary.json", summary)
        try:
            write_run_report(run_dir)
        except Exception:
            # The results are written; a page that cannot be made must not hide them.
            logger.exception("the report could not be written; `colocate report` tries again")
        display.finished(render_ending(summary, run_dir))
    finally:
        display.close()
    return 0 if summary["status"] == "completed" else 1


def _world(config: RunConfig) -> tuple[World, ScriptSource | None]:
    if config.sim.from_run is None:
        return make_world(config), None
    fitted = fit_run(Path(config.sim.from_run), config)
    return fitted.world, fitted.scripts


def _simulate(
    config: RunConfig, run_dir: Path, world: World, scripts: ScriptSource | None, say: Any
) -> dict[str, Any]:
    began_s = time.monotonic()
    recorder = SimRecorder(run_dir, trace_fraction=config.sim.trace_fraction)
    audit = Audit() if config.sim.audit else None
    watchers: list[Watcher] = [recorder, _Progress(config.steps, say), *([audit] if audit else [])]
    cluster = Cluster(core_settings(config), world, scripts=scripts, watchers=watchers)
    # Nothing of a simulation is in cycles, and looking for them takes time.
    gc.disable()
    try:
        outcome = cluster.run()
    except Exception as error:
        logger.exception("the simulation broke")
        outcome = Outcome(status="failed", error=f"{type(error).__name__}: {error}")
    finally:
        gc.enable()
        recorder.close()
    summary = cluster.scheduler.summary()
    if audit is not None and outcome.status == "completed":
        audit.auditor.check_summary(summary)
        if audit.auditor.violations:
            message = audit.auditor.violations[0].message
            outcome = Outcome(status="failed", error=f"the books do not balance: {message}")
    return _summarize(config, cluster, outcome, summary, time.monotonic() - began_s)


def _summarize(
    config: RunConfig, cluster: Cluster, outcome: Outcome, summary: dict[str, Any], took_s: float
) -> dict[str, Any]:
    summary["memory"] = {"provider": "simulated", **summary["memory"]}
    wall_s = cluster.now_s + cluster.world.outside_s
    rollout_s = summary["phase_s"]["rollout"]
    num_engines = cluster.world.num_engines
    return {
        "schema": SUMMARY_SCHEMA,
        "status": outcome.status,
        "error": outcome.error,
        "run_id": uuid.uuid4().hex[:12],
        "wall_s": round(wall_s, 3),
        **summary,
        "simulation": {
            "from_run": config.sim.from_run,
            "trace_fraction": config.sim.trace_fraction,
            "audited": config.sim.audit,
            "events": cluster.num_events,
            "took_s": round(took_s, 3),
            "preemptions": cluster.fleet.num_preemptions,
            "engines_busy": round(cluster.fleet.busy_s / (num_engines * rollout_s), 6)
            if rollout_s
            else None,
        },
    }
