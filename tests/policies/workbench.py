"""A small world with a continuous-batching engine, to compare swap policies on equal workloads.

It feeds the real scheduler and keeps time with one queue of events; a run of a few hundred
training steps takes seconds. What a trajectory will do (turns, lengths, latencies) follows from
the seed and its place in its group, whatever the policy, so policies are compared on the same
work.

    engine:   one step for all running requests takes base_s + per_sequence_s x running; reading
              contexts comes first and stalls the steps
    swap:     each phase takes its time, within 10%
    trainer:  step_s + token_s x tokens
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.phases import ENDS, Phase
from colocate.core.scheduler import Scheduler
from colocate.core.settings import Settings
from colocate.core.types import FinishReason, Span, TrajectoryId, Version

Draw = Callable[[random.Random], float]


def constant(value: float) -> Draw:
    return lambda _: value


def exponential(mean: float) -> Draw:
    return lambda draw: draw.expovariate(1 / mean)


def pareto(smallest: float, exponent: float, largest: float) -> Draw:
    return lambda draw: min(largest, smallest * draw.paretovariate(exponent))


def lognormal(median: float, sigma: float, largest: float) -> Draw:
    return lambda draw: min(largest, median * draw.lognormvariate(0.0, sigma))


@dataclass(frozen=True, kw_only=True)
class Workload:
    """Seconds and tokens. ``swap_s``: of all phases of a swap together, without training."""

    turn_tokens: Draw = field(default_factory=lambda: lognormal(60, 0.6, 600))
    mean_turns: float = 3.0
    max_turns: int = 12
    latency_s: Draw = field(default_factory=lambda: constant(0.5))
    prompt_tokens: int = 100
    observation_tokens: int = 40
    base_s: float = 0.02
    per_sequence_s: float = 2e-4
    prefill_token_s: float = 2e-5
    swap_s: float = 6.0
    step_s: float = 1.0
    train_token_s: float = 2e-4


SHARES = {
    act.StartPorts: 0.1,
    act.Park: 0.02,
    act.Sleep: 0.13,
    act.LoadTrainer: 0.2,
    act.OffloadTrainer: 0.25,
    act.WakeWeights: 0.1,
    act.Publish: 0.2,
    act.WakeKv: 0.1,
    act.CloseRun: 0.1,
}
PHASE_OF = {
    act.StartPorts: Phase.STARTING,
    act.Park: Phase.PARKING,
    act.Sleep: Phase.SLEEPING,
    act.LoadTrainer: Phase.TRAINER_WAKING,
    act.OffloadTrainer: Phase.TRAINER_OFFLOADING,
    act.WakeWeights: Phase.WEIGHTS_WAKING,
    act.Publish: Phase.PUBLISHING,
    act.WakeKv: Phase.KV_WAKING,
    act.CloseRun: Phase.CLOSING,
}


@dataclass(slots=True)
class _Actor:
    draw: random.Random
    attempt: int
    num_context: int
    turn: int = 0
    turn_left: int = 0
    num_cached: int = 0
    spans: list[Span] = field(default_factory=list)
    num_changes: int = 0

    def digest(self, trajectory: TrajectoryId) -> str:
        return f"{trajectory}.{self.attempt}.{self.num_changes}" if self.num_changes else ""


@dataclass(slots=True)
class _Running:
    trajectory: TrajectoryId
    attempt: int
    num_tokens: int
    began: float
    ends: float
    num_cached: int


class Engine:
    """Running requests on a common clock of steps; the clock stands while contexts are read."""

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self.running: dict[str, _Running] = {}
        self._heap: list[tuple[float, str]] = []
        self._clock = 0.0
        self._backlog_s = 0.0
        self._at_s = 0.0

    def advance(self, time_s: float) -> None:
        left_s = time_s - self._at_s
        self._at_s = time_s
        reading_s = min(left_s, self._backlog_s)
        self._backlog_s -= reading_s
        if self.running:
            self._clock += (left_s - reading_s) / self._step_s()

    def _step_s(self) -> float:
        return self._workload.base_s + self._workload.per_sequence_s * len(self.running)

    def submit(self, request: str, running: _Running, num_to_read: int) -> None:
        self._backlog_s += num_to_read * self._workload.prefill_token_s
        running.began, running.ends = self._clock, self._clock + running.num_tokens
        self.running[request] = running
        heapq.heappush(self._heap, (running.ends, request))

    def next_end_s(self) -> float | None:
        if not self._heap:
            return None
        ahead = max(0.0, self._heap[0][0] - self._clock)
        return self._at_s + self._backlog_s + ahead * self._step_s()

    def take_ended(self) -> list[tuple[str, _Running]]:
        ended = []
        while self._heap and self._heap[0][0] <= self._clock + 1e-6:
            _, request = heapq.heappop(self._heap)
            ended.append((request, self.running.pop(request)))
        return ended

    def abort(self) -> list[tuple[str, _Running, int]]:
        """All of them, with the tokens that each has sampled."""
        aborted = [
            (request, r, min(r.num_tokens - 1, int(self._clock - r.began + 1e-6)))
            for request, r in self.running.items()
        ]
        self.running.clear()
        self._heap.clear()
        self._backlog_s = 0.0
        return aborted


class Workbench:
    """Runs one run to its end; ``tokens_per_s`` and the scheduler's books are the result."""

    def __init__(
        self,
        settings: Settings,
        workload: Workload,
        *,
        seed: int = 0,
        watch: Callable[[ev.Event, Sequence[act.Action]], None] | None = None,
    ) -> None:
        self.scheduler = Scheduler(settings)
        self.engine = Engine(workload)
        self.time_s = 0.0
        self.decisions: list[act.Decide] = []
        self.closed_swaps: list[act.CloseSwap] = []
        self.step_times: list[tuple[float, int]] = []
        self._workload = workload
        self._seed = seed
        self._noise = random.Random(seed)
        self._watch = watch
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._num_pushed = 0
        self._starts: Counter[int] = Counter()
        self._actors: dict[TrajectoryId, _Actor] = {}
        self._epoch = 0

    def run(self, max_events: int = 5_000_000) -> Workbench:
        self._take(ev.RunStarted(time_s=0.0, settings=self.scheduler.settings))
        for _ in range(max_events):
            if self.scheduler.phase in ENDS:
                return self
            engine_s = self.engine.next_end_s()
            if engine_s is not None and (not self._heap or engine_s <= self._heap[0][0]):
                self._go_to(engine_s)
                for request, running in self.engine.take_ended():
                    self._request_ended(request, running, running.num_tokens, FinishReason.STOP)
                continue
            assert self._heap, "nothing can happen any more"
            time_s, _, happen = heapq.heappop(self._heap)
            self._go_to(time_s)
            happen()
        raise AssertionError(f"not over after {max_events} events")

    @property
    def tokens_per_s(self) -> float:
        return self.scheduler.books.tokens["trained"] / self.time_s

    def _go_to(self, time_s: float) -> None:
        self.time_s = max(self.time_s, time_s)
        self.engine.advance(self.time_s)

    def _later(self, after_s: float, happen: Callable[[], None]) -> None:
        self._num_pushed += 1
        heapq.heappush(self._heap, (self.time_s + after_s, self._num_pushed, happen))

    def _take(self, event: ev.Event) -> None:
        actions = self.scheduler.handle(event)
        if self._watch is not None:
            self._watch(event, actions)
        for action in actions:
            self._carry_out(action)

    # Commands

    def _carry_out(self, action: act.Action) -> None:
        match action:
            case act.StartTrajectory():
                self._start(action)
            case act.SubmitRequest():
                self._submit(action)
            case act.EndTrajectory():
                del self._actors[action.trajectory]
            case act.SetTimer(timer="swap"):
                self._later(action.at_s - self.time_s, self._fire)
            case act.Decide():
                self.decisions.append(action)
            case act.CloseSwap():
                self.closed_swaps.append(action)
            case act.Train():
                self._train(action)
            case act.SampleMemory():
                raise AssertionError("nothing measures memory here")
            case act.PhaseAction():
                self._phase(action)
            case _:
                pass

    def _fire(self) -> None:
        self._take(ev.TimerFired(time_s=self.time_s, timer="swap"))

    def _start(self, action: act.StartTrajectory) -> None:
        number = self._starts[action.group]
        self._starts[action.group] += 1
        draw = random.Random(f"{self._seed}/{action.group}/{number}")
        actor = _Actor(draw, action.attempt, self._workload.prompt_tokens)
        self._actors[action.trajectory] = actor
        self._later(0.05, lambda: self._turn_ready(action.trajectory, actor, 0.05, 0))

    def _turn_ready(
        self, trajectory: TrajectoryId, actor: _Actor, busy_s: float, num_new: int
    ) -> None:
        if self._actors.get(trajectory) is not actor:
            return
        base = actor.digest(trajectory)
        actor.num_changes += 1
        actor.num_context += num_new
        actor.turn += 1
        actor.turn_left = max(1, round(self._workload.turn_tokens(actor.draw)))
        self._take(
            ev.TurnReady(
                time_s=self.time_s,
                trajectory=trajectory,
                attempt=actor.attempt,
                num_context_tokens=actor.num_context,
                busy_s=busy_s,
                base=base,
                digest=actor.digest(trajectory),
            )
        )

    def _submit(self, action: act.SubmitRequest) -> None:
        actor = self._actors[action.trajectory]
        running = _Running(
            action.trajectory, actor.attempt, actor.turn_left, 0.0, 0.0, actor.num_cached
        )
        self.engine.submit(action.request, running, actor.num_context - actor.num_cached)

    def _request_ended(
        self, request: str, running: _Running, num_tokens: int, reason: FinishReason
    ) -> None:
        actor = self._actors[running.trajectory]
        version = self.scheduler.swapper.engine_version
        spans = (Span(version=version, length=num_tokens),) if num_tokens else ()
        base = actor.digest(running.trajectory)
        if num_tokens:
            actor.num_changes += 1
        actor.spans.extend(spans)
        actor.num_context += num_tokens
        actor.num_cached = actor.num_context
        actor.turn_left -= num_tokens
        if reason is FinishReason.STOP:
            latency_s = self._workload.latency_s(actor.draw)
            self._later(latency_s, lambda: self._answer(running.trajectory, actor, latency_s))
        self._take(
            ev.RequestEnded(
                time_s=self.time_s,
                trajectory=running.trajectory,
                attempt=running.attempt,
                request=request,
                finish_reason=reason,
                spans=spans,
                num_cached_tokens=running.num_cached,
                base=base,
                digest=actor.digest(running.trajectory),
            )
        )

    def _answer(self, trajectory: TrajectoryId, actor: _Actor, latency_s: float) -> None:
        if self._actors.get(trajectory) is not actor:
            return
        over = actor.draw.random() < 1 / self._workload.mean_turns
        if not over and actor.turn < self._workload.max_turns:
            self._turn_ready(trajectory, actor, latency_s, self._workload.observation_tokens)
            return
        self._take(
            ev.TrajectoryFinished(
                time_s=self.time_s,
                trajectory=trajectory,
                attempt=actor.attempt,
                reward=1.0,
                busy_s=latency_s,
                base=actor.digest(trajectory),
            )
        )

    def _phase(self, action: act.PhaseAction) -> None:
        share = SHARES[type(action)]
        took_s = self._workload.swap_s * share * self._noise.uniform(0.9, 1.1)
        if isinstance(action, act.Park):
            for request, running, num_tokens in self.engine.abort():
                self._later(
                    0.0,
                    lambda q=request, r=running, n=num_tokens: self._request_ended(
                        q, r, n, FinishReason.ABORT
                    ),
                )
        version = None
        if isinstance(action, act.Publish):
            version = action.version
        if isinstance(action, act.WakeKv):
            for actor in self._actors.values():
                actor.num_cached = 0
        phase = PHASE_OF[type(action)]
        self._later(
            took_s,
            lambda: self._take(ev.PhaseEnded(time_s=self.time_s, phase=phase, version=version)),
        )

    def _train(self, action: act.Train) -> None:
        actors = [(t, self._actors[t]) for t in action.trajectories]
        num_tokens = sum(s.length for _, a in actors for s in a.spans)
        took_s = self._workload.step_s + num_tokens * self._workload.train_token_s

        def ended() -> None:
            self.step_times.append((self.time_s, num_tokens))
            self._take(
                ev.BatchTrained(
                    time_s=self.time_s,
                    batch=action.batch,
                    version=Version(action.version + 1),
                    digests=tuple(a.digest(t) for t, a in actors),
                    num_tokens=num_tokens,
                )
            )

        self._later(took_s, ended)
