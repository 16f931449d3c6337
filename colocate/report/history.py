"""What a journal tells people: why each swap, how each trajectory ended, which took the longest."""

from __future__ import annotations

import dataclasses
import heapq
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.phases import Phase
from colocate.core.types import Ending, Span
from colocate.journal import Entry

NUM_LONGEST = 16
RESIDENT = "resident"
"""How a trajectory is named that had not ended when the journal did."""

ABANDONED = "abandoned"
"""Likewise, of one that was resident when the run went back to a checkpoint."""

# What an event carries out for trajectories, timers and phases says nothing about a decision.
_ROUTINE = (
    act.StartTrajectory,
    act.SubmitRequest,
    act.EndTrajectory,
    act.ResumeTrajectory,
    act.GiveUpGroup,
    act.Evaluate,
    act.SubmitEvaluation,
    act.RateCheckpoint,
    act.RollBack,
    act.SetTimer,
    act.SampleMemory,
    act.Train,
    act.PhaseAction,
)
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True)
class Generation:
    """One request at the engine: from submission to its return, and the tokens it sampled."""

    start_s: float
    end_s: float
    spans: tuple[Span, ...]
    aborted: bool


@dataclass(slots=True)
class Life:
    """A trajectory from its admission to its end. Times in seconds on the run's clock.

    ``num_before``: tokens that it had sampled in an earlier life of the run.
    """

    trajectory: int
    group: int
    began_s: float
    ended_s: float | None = None
    ending: str = RESIDENT
    reason: str = ""
    num_before: int = 0
    generations: list[Generation] = field(default_factory=list)
    environments: list[tuple[float, float]] = field(default_factory=list)

    @property
    def num_tokens(self) -> int:
        """Sampled tokens."""
        sampled = sum(span.length for one in self.generations for span in one.spans)
        return self.num_before + sampled


@dataclass(slots=True)
class EndingCount:
    """Trajectories that ended alike. ``num_tokens`` has the sampled tokens of each.

    ``reason`` is as given where all gave the same; where they differ in numbers, without these.
    """

    ending: str
    reason: str
    num_tokens: list[int] = field(default_factory=list)
    durations_s: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Decision:
    """One swap: when it was decided, and every number that its lines in the journal carry.

    ``facts`` are what stands in the journal under ``AdoptPlan``, ``CloseSwap`` and whatever else
    a policy adds, by field. ``phase_s`` is empty for a swap that was not completed.
    """

    time_s: float
    rollout_s: float
    batches: list[int] = field(default_factory=list)
    num_expired: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    phase_s: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True)
class History:
    """All that a report needs of a journal, however long it is.

    Attributes:
        end_s: Time of the last event.
        num_events: Lines read.
        endings: The most frequent first.
        longest: Lives, the longest first, at most ``NUM_LONGEST``.
        notices: Warnings, reliefs, faults and requests to stop, with their times.
    """

    end_s: float = 0.0
    num_events: int = 0
    endings: list[EndingCount] = field(default_factory=list)
    longest: list[Life] = field(default_factory=list)
    decisions: list[Decision] = field(default_factory=list)
    notices: list[tuple[float, str, str]] = field(default_factory=list)


def read_history(entries: Iterable[Entry]) -> History:
    """Reduces a journal in one pass; holds only trajectories that are alive, and the longest."""
    reader = _Reader()
    for entry in entries:
        reader.feed(entry)
    return reader.close()


class _Reader:
    def __init__(self) -> None:
        self._history = History()
        self._alive: dict[int, Life] = {}
        self._submitted_s: dict[str, float] = {}
        self._endings: dict[tuple[str, str], EndingCount] = {}
        self._longest: list[tuple[float, int, Life]] = []
        self._rollout_since_s = 0.0
        self._decision: Decision | None = None

    def feed(self, entry: Entry) -> None:
        event = entry.event
        self._history.end_s = event.time_s
        self._history.num_events += 1
        self._of_event(event)
        for action in entry.actions:
            self._of_action(event.time_s, action, is_stop=isinstance(event, ev.StopRequested))
        if self._decision is not None:
            self._add_facts(self._decision, entry.actions)
        if isinstance(event, ev.PhaseEnded) and event.phase in (Phase.STARTING, Phase.KV_WAKING):
            self._rollout_since_s = event.time_s
            self._decision = None

    def close(self) -> History:
        history = self._history
        for life in self._alive.values():
            self._count(life, history.end_s)
        history.endings = sorted(
            self._endings.values(), key=lambda e: (-len(e.num_tokens), e.ending, e.reason)
        )
        history.longest = [life for _, _, life in sorted(self._longest, reverse=True)]
        return history

    def _of_event(self, event: ev.Event) -> None:
        match event:
            case ev.RequestEnded():
                began_s = self._submitted_s.pop(event.request, event.time_s)
                if life := self._alive.get(event.trajectory):
                    aborted = event.finish_reason == "abort"
                    generation = Generation(began_s, event.time_s, event.spans, aborted)
                    life.generations.append(generation)
            case ev.TurnReady() | ev.TrajectoryFinished() | ev.TrajectoryLost():
                if life := self._alive.get(event.trajectory):
                    life.environments.append((event.time_s - event.busy_s, event.time_s))
            case ev.Restored():
                for record in event.buffer.residents.trajectories:
                    if record.ending is None:
                        self._alive[record.id] = Life(
                            record.id,
                            record.group,
                            event.time_s,
                            num_before=record.num_sampled_tokens,
                        )
            case ev.Faulted():
                self._notice(event.time_s, "fault", event.error)
            case ev.EngineLost():
                self._notice(event.time_s, "engine lost", event.error)
            case ev.TrainerLost():
                self._notice(event.time_s, "trainer lost", event.error)
            case ev.StopRequested():
                self._notice(event.time_s, "stop requested", f"signal {event.signal}")
            case _:
                pass

    def _of_action(self, time_s: float, action: act.Action, *, is_stop: bool) -> None:
        match action:
            case act.StartTrajectory():
                # A later attempt goes on with the same life.
                if action.trajectory not in self._alive:
                    life = Life(action.trajectory, action.group, time_s)
                    self._alive[action.trajectory] = life
            case act.SubmitRequest():
                self._submitted_s[action.request] = time_s
            case act.EndTrajectory():
                if action.trajectory in self._alive:
                    ended = self._alive.pop(action.trajectory)
                    ended.ended_s, ended.ending, ended.reason = time_s, action.ending, action.reason
                    self._count(ended, time_s)
                if action.ending is Ending.EXPIRED and self._decision is not None:
                    self._decision.num_expired += 1
            case act.RollBack():
                self._abandon(time_s, action)
            case act.ResumeTrajectory():
                if action.trajectory not in self._alive:
                    life = Life(action.trajectory, action.group, time_s)
                    self._alive[action.trajectory] = life
            case act.GiveUpGroup():
                for trajectory in action.trajectories:
                    self._alive.pop(trajectory, None)
            case act.Park() if not is_stop:
                self._decision = Decision(time_s, time_s - self._rollout_since_s)
                self._history.decisions.append(self._decision)
            case act.Train() if self._decision is not None:
                self._decision.batches.append(action.batch)
            case act.Warn():
                self._notice(time_s, "warning", action.message)
            case act.CutEvaluation():
                text = f"of version {action.version}: {action.reason}"
                self._notice(time_s, "evaluation cut", text)
            case act.Relieve():
                self._notice(time_s, "memory remedy", str(action.remedy))
            case _:
                pass

    def _abandon(self, time_s: float, action: act.RollBack) -> None:
        """Those that the checkpoint knows go on as new lives, which tell what comes after it."""
        for life in self._alive.values():
            life.ended_s, life.ending = time_s, ABANDONED
            life.reason = f"the run went back to version {action.version}"
            self._count(life, time_s)
        self._alive.clear()
        self._decision = None

    def _notice(self, time_s: float, kind: str, text: str) -> None:
        self._history.notices.append((time_s, kind, text))

    def _add_facts(self, decision: Decision, actions: Iterable[act.Action]) -> None:
        for action in actions:
            if isinstance(action, (*_ROUTINE, act.CutEvaluation, act.Warn, act.Relieve)):
                continue
            for each in dataclasses.fields(action):
                value = getattr(action, each.name)
                if each.name == "phase_s":
                    decision.phase_s = {str(phase): s for phase, s in value.items()}
                else:
                    decision.facts[each.name] = value

    def _count(self, life: Life, end_s: float) -> None:
        ending, shape = str(life.ending), shape_of(life.reason)
        counted = self._endings.setdefault((ending, shape), EndingCount(ending, life.reason))
        if counted.reason != life.reason:
            counted.reason = shape
        counted.num_tokens.append(life.num_tokens)
        duration_s = end_s - life.began_s
        counted.durations_s.append(duration_s)
        entry = (duration_s, life.trajectory, life)
        if len(self._longest) < NUM_LONGEST:
            heapq.heappush(self._longest, entry)
        else:
            heapq.heappushpop(self._longest, entry)


def shape_of(reason: str) -> str:
    """A reason without its numbers, so that like reasons are counted together."""
    return _NUMBER.sub("…", reason)


def version_spans(life: Life) -> Mapping[int, int]:
    """Sampled tokens by the version of the weights that sampled them, oldest first."""
    counts: Counter[int] = Counter()
    for generation in life.generations:
        for span in generation.spans:
            counts[span.version] += span.length
    return dict(sorted(counts.items()))
