"""Evaluations: when one is due, what of it is at the engine, and how long it holds the swap.

    ROLLOUT entered, one due --Evaluate--> [running] --EvaluationEnded--> the swap may come
                                               |
        deadline, stop, fault, loss --CutEvaluation--> the swap may come; EvaluationEnded follows

An evaluation runs beside the rollout and is of one version of the weights, since the swap waits
for it, though never longer than ``eval_timeout_s``. What else cuts it makes it void, and it is done
again: in the rollout that follows a loss, or by the life that follows a stop or a fault. Its
samples are no trajectories: they are in no group, have no lag, and are in no figure but the
tally's. They share the engine's limit on requests with the trajectories, and nothing else.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

from colocate.core.actions import (
    Action,
    CutEvaluation,
    Evaluate,
    RateCheckpoint,
    SetTimer,
    SubmitEvaluation,
)
from colocate.core.admission import RequestQueue
from colocate.core.deadlines import driver_stood_still
from colocate.core.evaluation_tally import LEADING, EvaluationTally
from colocate.core.events import (
    EvaluationEnded,
    EvaluationRequestEnded,
    EvaluationTurnReady,
    TimerFired,
)
from colocate.core.settings import Settings
from colocate.core.trajectory import ProtocolError
from colocate.core.types import Version


@dataclass(slots=True)
class _Running:
    """One evaluation between ``Evaluate`` and its end.

    ``waiting``: samples at the gate. ``before``: the version that was evaluated before.
    """

    version: Version
    began_s: float
    before: Version | None
    due_s: float
    waiting: deque[int] = field(default_factory=deque)
    inflight: dict[str, int] = field(default_factory=dict)
    num_turns: Counter[int] = field(default_factory=Counter)


class Evaluations:
    """At most one evaluation at a time; the next begins in a later rollout."""

    def __init__(self, settings: Settings, requests: RequestQueue, tally: EvaluationTally) -> None:
        self._settings = settings
        self._requests = requests
        self._tally = tally
        self._running: _Running | None = None
        self._cut: dict[Version, float] = {}
        self._last: Version | None = None
        self._awaited: Version | None = None

    def take_up(self, evaluated: Version | None) -> None:
        """What an earlier life has evaluated is not evaluated again."""
        self._last = evaluated

    @property
    def holds_the_swap(self) -> bool:
        return self._running is not None or self._awaited is not None

    def is_due(self, version: Version) -> bool:
        """Whether the rollout that begins with these weights begins with an evaluation."""
        settings = self._settings
        every = settings.eval_every_steps
        if not every or self._last == version:
            return False
        if version == 0:
            return settings.eval_before_first_step
        return version // every > (self._last or 0) // every or version >= settings.steps

    def begin(self, version: Version, time_s: float) -> list[Action]:
        """Begins an evaluation where one is due.

        One of the same version that was cut, and has still to be told of, is not mixed up with it:
        its end is awaited first.
        """
        self._awaited = None
        if not self.is_due(version):
            return []
        if version in self._cut:
            self._awaited = version
            return []
        due_s = time_s + self._settings.eval_timeout_s
        self._running = _Running(version, time_s, before=self._last, due_s=due_s)
        self._last = version
        return [
            SetTimer(timer=_deadline_of(version), at_s=due_s),
            Evaluate(version=version, num_samples=self._settings.eval_num_samples),
        ]

    def submit(self) -> list[Action]:
        """Opens the gate to samples, as far as the engine has room. They go before trajectories:
        the swap waits for them."""
        running = self._running
        actions: list[Action] = []
        while running is not None and running.waiting and self._requests.has_room:
            sample = running.waiting.popleft()
            request = f"evaluation.{running.version}.{sample}.{running.num_turns[sample]}"
            running.num_turns[sample] += 1
            running.inflight[request] = sample
            self._requests.lend(request)
            actions.append(
                SubmitEvaluation(version=running.version, sample=sample, request=request)
            )
        return actions

    # What comes in

    def turn_ready(self, event: EvaluationTurnReady) -> bool:
        """False where it comes too late.

        Raises:
            ProtocolError: no such evaluation or sample, or one that asks twice.
        """
        running = self._current(event.version)
        if running is None:
            return False
        if not 0 <= event.sample < self._settings.eval_num_samples:
            raise ProtocolError(f"an evaluation has no sample {event.sample}")
        if event.sample in running.waiting or event.sample in running.inflight.values():
            raise ProtocolError(f"sample {event.sample} of the evaluation is being generated on")
        running.waiting.append(event.sample)
        return True

    def request_ended(self, event: EvaluationRequestEnded) -> bool:
        """False where it comes too late.

        Raises:
            ProtocolError: a request that is not in flight, or tokens of another version.
        """
        running = self._current(event.version)
        if running is None:
            return False
        if running.inflight.get(event.request) != event.sample:
            raise ProtocolError(f"request {event.request} of the evaluation is not in flight")
        if wrong := [span for span in event.spans if span.version != event.version]:
            raise ProtocolError(
                f"request {event.request} reports tokens of {wrong}, but version "
                f"{event.version} is being evaluated"
            )
        del running.inflight[event.request]
        self._requests.take_back(event.request)
        self._tally.tokens += sum(span.length for span in event.spans)
        return True

    def ended(self, event: EvaluationEnded, *, present: Version, is_saved: bool) -> list[Action]:
        """Books an evaluation, and rates the checkpoint of its weights.

        Args:
            event: What came of it.
            present: The trainer's version; that of an evaluation is later where it is abandoned.
            is_saved: There is a checkpoint of this version.

        Raises:
            ProtocolError: it was not begun, has ended, or does not account for each sample.
        """
        running = self._current(event.version)
        num_lost = sum(event.lost.values())
        if event.num_scored + event.num_cut + num_lost != self._settings.eval_num_samples:
            raise ProtocolError(
                f"the evaluation of version {event.version} has "
                f"{self._settings.eval_num_samples} samples, but accounts for {event}"
            )
        if running is None:
            began_s = self._cut.pop(event.version)
            if event.version == present and event.metrics and not event.num_cut:
                self._last = present  # it was over when it was cut
        else:
            if running.waiting or running.inflight or event.num_cut:
                raise ProtocolError(f"the evaluation of version {event.version} is not over")
            began_s, self._running = running.began_s, None
        self._tally.end(event, event.time_s - began_s, counts=event.version <= present)
        if event.version == self._awaited:
            return self.begin(event.version, event.time_s)
        if not (self._settings.keep_best and is_saved) or running is None:
            return []
        value = event.metrics.get(LEADING)
        if value is None:
            return []
        return [RateCheckpoint(version=event.version, value=value, by=f"eval/{LEADING}")]

    def go_back(self, version: Version) -> list[Action]:
        """The run goes back to a version: what is taken again is evaluated again."""
        actions = self.cut("the trainer was lost", is_void=True)
        if self._last is not None and self._last > version:
            self._last = version
        self._tally.go_back(version)
        return actions

    def timer_fired(self, event: TimerFired) -> list[Action]:
        """Cuts one whose time is over, unless the driver was stopped itself meanwhile."""
        running = self._running
        if running is None or event.timer != _deadline_of(running.version):
            return []
        timeout_s = self._settings.eval_timeout_s
        if driver_stood_still(event.time_s, running.due_s):
            running.due_s = event.time_s + timeout_s
            return [SetTimer(timer=event.timer, at_s=running.due_s)]
        return self.cut(f"eval.timeout_s = {timeout_s}")

    def cut(self, reason: str, *, is_void: bool = False) -> list[Action]:
        """Lets go of the swap at once; what was scored so far is still to be told.

        Args:
            reason: Why, for people.
            is_void: It is to be done again, so that its metrics are not wanted.
        """
        self._awaited = None
        running, self._running = self._running, None
        if running is None:
            return []
        for request in running.inflight:
            self._requests.take_back(request)
        self._cut[running.version] = running.began_s
        if is_void:
            self._last = running.before
        self._tally.cut[reason] += 1
        return [CutEvaluation(version=running.version, reason=reason, is_void=is_void)]

    def _current(self, version: Version) -> _Running | None:
        """The one that an event speaks of; None where it was cut.

        Raises:
            ProtocolError: where it was neither begun nor cut.
        """
        if self._running is not None and self._running.version == version:
            return self._running
        if version not in self._cut:
            raise ProtocolError(f"version {version} is not being evaluated")
        return None


def _deadline_of(version: Version) -> str:
    return f"evaluation:{version}"
