"""The part of the audit that watches evaluations, from events and actions alone."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from colocate.core import actions as act
from colocate.core import events as ev

Finding = tuple[str, str]
"""An invariant, and how it is violated."""


@dataclass(slots=True)
class _Evaluation:
    num_samples: int
    inflight: dict[str, int] = field(default_factory=dict)
    is_cut: bool = False


class EvaluationAuditor:
    """Each evaluation is of one version, holds the swap unless it is cut, and ends once."""

    def __init__(self) -> None:
        self._open: dict[int, _Evaluation] = {}
        self._running: int | None = None
        self._begun: set[int] = set()
        self._samples: Counter[str] = Counter()
        self._tokens = 0
        self._num_ended = 0
        self._num_cut = 0

    @property
    def num_inflight(self) -> int:
        running = None if self._running is None else self._open[self._running]
        return len(running.inflight) if running else 0

    def check_event(self, event: ev.Event) -> Iterator[Finding]:
        match event:
            case ev.EvaluationRequestEnded():
                yield from self._request_ended(event)
            case ev.EvaluationEnded():
                yield from self._ended(event)
            case _:
                pass

    def check_action(self, action: act.Action, engine_version: int) -> Iterator[Finding]:
        match action:
            case act.Evaluate():
                yield from self._begin(action, engine_version)
            case act.SubmitEvaluation():
                yield from self._submit(action)
            case act.CutEvaluation():
                if self._running != action.version:
                    yield "exactly once", f"version {action.version} is cut, and not evaluated"
                    return
                self._open[action.version].is_cut = True
                self._running = None
                self._num_cut += 1
                if action.is_void:
                    self._begun.discard(action.version)
            case act.RollBack():
                self._begun = {version for version in self._begun if version <= action.version}
            case act.Park() if self._running is not None:
                yield "exclusion", f"the evaluation of version {self._running} is parked"
            case _:
                pass

    def _begin(self, action: act.Evaluate, engine_version: int) -> Iterator[Finding]:
        known = self._begun | self._open.keys()
        if self._running is not None or action.version in known:
            yield "exactly once", f"version {action.version} is evaluated again, or beside another"
        if action.version != engine_version:
            yield "fidelity", f"version {action.version} is evaluated on version {engine_version}"
        self._begun.add(action.version)
        self._running = action.version
        self._open[action.version] = _Evaluation(action.num_samples)

    def _submit(self, action: act.SubmitEvaluation) -> Iterator[Finding]:
        if self._running != action.version:
            yield "exclusion", f"request {action.request} is of no evaluation that runs"
            return
        evaluation = self._open[action.version]
        if action.request in evaluation.inflight or action.sample in evaluation.inflight.values():
            yield "exactly once", f"request {action.request} was made twice"
        if not 0 <= action.sample < evaluation.num_samples:
            yield "conservation", f"there is no sample {action.sample}"
        evaluation.inflight[action.request] = action.sample

    def _request_ended(self, event: ev.EvaluationRequestEnded) -> Iterator[Finding]:
        evaluation = self._open.get(event.version)
        if evaluation is None or evaluation.is_cut:
            return
        self._tokens += sum(span.length for span in event.spans)
        if evaluation.inflight.pop(event.request, None) != event.sample:
            yield "exactly once", f"request {event.request} was not in flight"
        for span in event.spans:
            if span.version != event.version:
                yield "fidelity", f"request {event.request} has tokens of version {span.version}"

    def _ended(self, event: ev.EvaluationEnded) -> Iterator[Finding]:
        evaluation = self._open.pop(event.version, None)
        if evaluation is None:
            yield "exactly once", f"an evaluation of version {event.version} ended, and never began"
            return
        if not evaluation.is_cut:
            self._running = None
            if evaluation.inflight:
                yield "exactly once", f"version {event.version}'s evaluation ended with requests"
        of_sample = {
            "scored": event.num_scored,
            "lost": sum(event.lost.values()),
            "cut": event.num_cut,
        }
        if sum(of_sample.values()) != evaluation.num_samples:
            yield "conservation", f"version {event.version}'s evaluation accounts for {of_sample}"
        self._samples.update(of_sample)
        self._num_ended += 1

    def check_summary(self, stated: dict[str, Any] | None) -> Iterator[Finding]:
        counted = None
        if self._num_ended or self._num_cut:
            counted = {
                "evaluations": self._num_ended,
                "cut": self._num_cut,
                "samples": {name: self._samples[name] for name in ("scored", "lost", "cut")},
                "tokens": self._tokens,
            }
        known = stated and {
            "evaluations": stated["evaluations"],
            "cut": sum(stated["cut"].values()),
            "samples": stated["samples"],
            "tokens": stated["tokens"],
        }
        if known != counted:
            yield "conservation", f"summary.json says of evaluations {known}, counted {counted}"
