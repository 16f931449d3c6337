"""What a simulation leaves in its folder: journal, trace and metrics, sampled by group.

A group is kept whole or not at all: its trajectories, requests and environment steps. What belongs
to no trajectory (phases, timers, training steps, swaps) is always kept; a training step names all
of its trajectories. An event of another group's is kept where something that is kept follows from
it: a place that it freed, or a phase that it ended.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.phases import Phase
from colocate.core.scheduler import Scheduler
from colocate.core.types import GroupId
from colocate.journal import JournalWriter
from colocate.report.records import MetricsWriter
from colocate.report.trace import TraceWriter

_OF_TRAJECTORIES = (ev.TurnReady, ev.RequestEnded, ev.TrajectoryFinished, ev.TrajectoryLost)
_ACTIONS_OF_TRAJECTORIES = (act.StartTrajectory, act.SubmitRequest, act.EndTrajectory)

_RANGE = 2**32
_SPREAD = 2654435761
"""Knuth's multiplier: neighbours of the prompt stream fall far apart."""


class SimRecorder:
    """A watcher. ``close`` must follow, whatever happens."""

    def __init__(self, run_dir: Path, *, trace_fraction: float) -> None:
        self._limit = round(trace_fraction * _RANGE)
        self._journal = JournalWriter(run_dir / "events.jsonl")
        self._trace = TraceWriter(run_dir / "trace.json")
        self._metrics = MetricsWriter(run_dir / "metrics.jsonl")
        self._kept: set[int] = set()
        self._requests: dict[str, float] = {}
        self._phase = Phase.STARTING
        self._phase_since_s = 0.0

    def keeps(self, group: GroupId) -> bool:
        return group * _SPREAD % _RANGE < self._limit

    def on_event(
        self, event: ev.Event, actions: Sequence[act.Action], scheduler: Scheduler
    ) -> None:
        ended = []
        if actions:
            ended = [a.trajectory for a in actions if type(a) is act.EndTrajectory]
            if self._limit < _RANGE:
                actions = self._sift(actions)
        is_kept = not isinstance(event, _OF_TRAJECTORIES) or (
            self._limit == _RANGE or event.trajectory in self._kept
        )
        if actions or is_kept:
            self._journal.write(event, actions)
            self._draw(event, actions, is_kept)
        if scheduler.phase is not self._phase:
            self._trace.phase(str(self._phase), self._phase_since_s, event.time_s)
            self._phase, self._phase_since_s = scheduler.phase, event.time_s
        if type(event) is ev.BatchTrained:
            self._metrics.write(
                {
                    "step": event.version,
                    "time_s": event.time_s,
                    "batch": event.batch,
                    "swaps": scheduler.books.swaps,
                    **event.metrics,
                }
            )
        self._kept.difference_update(ended)

    def close(self) -> None:
        self._journal.close()
        self._trace.close()
        self._metrics.close()

    def _sift(self, actions: Sequence[act.Action]) -> list[act.Action]:
        kept = self._kept
        sifted = []
        for action in actions:
            if type(action) is act.StartTrajectory and self.keeps(action.group):
                kept.add(action.trajectory)
            if not isinstance(action, _ACTIONS_OF_TRAJECTORIES) or action.trajectory in kept:
                sifted.append(action)
        return sifted

    def _draw(self, event: ev.Event, actions: Sequence[act.Action], is_kept: bool) -> None:
        for action in actions:
            if type(action) is act.SubmitRequest:
                self._requests[action.request] = event.time_s
        if not is_kept:
            return
        match event:
            case ev.RequestEnded():
                began_s = self._requests.pop(event.request, event.time_s)
                shown = {
                    "request": event.request,
                    "tokens": sum(s.length for s in event.spans),
                    "finish": str(event.finish_reason),
                }
                self._trace.request(event.trajectory, began_s, event.time_s, shown)
            case ev.TurnReady() | ev.TrajectoryFinished() | ev.TrajectoryLost():
                began_s = event.time_s - event.busy_s
                self._trace.environment_step(event.trajectory, began_s, event.time_s, {})
            case ev.PhaseEnded() if event.memory is not None:
                self._trace.memory(event.time_s, event.memory)
            case _:
                pass
