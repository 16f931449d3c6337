"""A run of the real scheduler in a simulated world, at a hundred thousand trajectories a minute.

        heap of things to come --event--> Scheduler.handle --> observers
               ^                                |
               +--------- carry out <-- actions +

Why a loop of its own, where ``colocate.sim.run`` has the real driver under a virtual clock: there
each trajectory is a task with its content, tokens and digests, which is what tests of the driver
need, and which handles one to two thousand events a second. A million trajectories are some ten
million events. Here a trajectory is a few numbers, an engine is arithmetic between its events
(``batching``), and the scheduler is the very one of a real run, called directly. Whatever decides
is therefore shared; what is modelled is durations. No library of simulation is needed for one heap
of times, and processes as generators would cost more than the events themselves.

Events at equal times are handled in the order in which they were put on the heap.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Protocol

from colocate.core import actions as act
from colocate.core.actions import Action
from colocate.core.events import (
    BatchTrained,
    CheckpointWritten,
    Event,
    MemorySampled,
    PartsReported,
    PhaseEnded,
    PromptCursor,
    Relieved,
    RequestEnded,
    RunStarted,
    StopRequested,
    TimerFired,
    TrajectoryFinished,
    TrajectoryLost,
    TurnReady,
)
from colocate.core.phases import ENDS, Phase
from colocate.core.remedies import Remedy
from colocate.core.scheduler import Scheduler
from colocate.core.settings import Settings
from colocate.core.staleness import lag
from colocate.core.swap import Outcome
from colocate.core.types import (
    ENGINE_PARTS,
    TRAINER_PARTS,
    BatchId,
    Ending,
    FinishReason,
    Part,
    SleepMode,
    Span,
    TrajectoryId,
    Version,
)
from colocate.sim.batching import Sequence as EngineSequence
from colocate.sim.device import SimDevice
from colocate.sim.distributions import make_draw
from colocate.sim.episodes import DrawnScripts, Episode, ScriptSource
from colocate.sim.fleet import Fleet
from colocate.sim.world import World

CLOCK_TICK_S = 1e-6


class SimulationStalled(Exception):
    """Nothing is to come, and the run has not ended."""


class Watcher(Protocol):
    """Sees every event with the actions that followed it, in order."""

    def on_event(self, event: Event, actions: Sequence[Action], scheduler: Scheduler) -> None: ...


class Cluster:
    """One simulated run: ``run()`` to its end, then look at ``scheduler`` and ``fleet``.

    Args:
        settings: Of the core, as in a real run.
        world: Durations, sizes, distributions.
        scripts: What trajectories do; None: drawn as ``world.sim.episode`` says.
        watchers: Journal, trace, audit.
    """

    def __init__(
        self,
        settings: Settings,
        world: World,
        *,
        scripts: ScriptSource | None = None,
        watchers: Sequence[Watcher] = (),
    ) -> None:
        # Nothing is lost here, so nothing need be kept to go back to.
        self.settings = replace(settings, max_restarts=0)
        self.scheduler = Scheduler(self.settings)
        self.world = world
        self.fleet = Fleet(world)
        self.device = SimDevice(world.sim.memory)
        self.now_s = 0.0
        self.num_events = 0
        self._watchers = watchers
        self._swap = world.sim.swap
        # One source of randomness for each purpose, so that a change of one leaves the others.
        self._scripts = scripts or DrawnScripts(world.sim.episode, self._random("episodes"))
        self._reset = make_draw(world.sim.environment.reset, self._random("reset"))
        self._step = make_draw(world.sim.environment.step, self._random("step"))
        self._faults = self._random("faults")
        self._episodes: dict[TrajectoryId, Episode] = {}
        self._kept: dict[TrajectoryId, Episode] = {}
        self._heap: list[tuple[float, int, Callable[[Any], None], Any]] = []
        self._num_put = 0
        self._expected: list[int] = [-1] * world.num_engines
        self._carry_out: dict[type[Action], Callable[[Any], None]] = {
            act.StartTrajectory: self._start_trajectory,
            act.SubmitRequest: self._submit_request,
            act.EndTrajectory: self._end_trajectory,
            act.ForgetContent: self._forget_content,
            act.SetTimer: self._set_timer,
            act.SampleMemory: self._sample_memory,
            act.Train: self._train,
            act.StartPorts: self._start_ports,
            act.Park: self._park,
            act.Sleep: self._sleep,
            act.LoadTrainer: self._load_trainer,
            act.OffloadTrainer: self._offload_trainer,
            act.WakeWeights: self._wake_weights,
            act.Publish: self._publish,
            act.WakeKv: self._wake_kv,
            act.Relieve: self._relieve,
            act.CloseRun: self._close_run,
        }

    def run(self, *, stop_at_s: float | None = None) -> Outcome:
        """Runs to the end.

        Args:
            stop_at_s: When an orderly end is asked for, as by a signal.

        Raises:
            SimulationStalled: the scheduler waits for something that will never come.
        """
        if stop_at_s is not None:
            self._put(stop_at_s, self._stop, None)
        self._post(RunStarted(time_s=0.0, settings=self.settings, cursor=PromptCursor()))
        heap, scheduler = self._heap, self.scheduler
        while scheduler.phase not in ENDS:
            if not heap:
                raise SimulationStalled(f"at {self.now_s} s, in {scheduler.phase}")
            self.now_s, _, happen, what = heapq.heappop(heap)
            happen(what)
            if self.fleet.changed:
                self._expect_engines()
        outcome = scheduler.swapper.outcome
        assert outcome is not None
        return outcome

    def _random(self, purpose: str) -> Random:
        return Random(f"{self.world.seed}/{purpose}")

    def _put(self, time_s: float, happen: Callable[[Any], None], what: Any) -> None:
        heapq.heappush(self._heap, (time_s, self._num_put, happen, what))
        self._num_put += 1

    def _post(self, event: Event) -> None:
        actions = self.scheduler.handle(event)
        self.num_events += 1
        for watcher in self._watchers:
            watcher.on_event(event, actions, self.scheduler)
        carry_out = self._carry_out
        for action in actions:
            handler = carry_out.get(type(action))
            if handler is not None:
                handler(action)

    @property
    def _time_s(self) -> float:
        """The present time as events have it: to the microsecond."""
        return round(self.now_s, 6)

    # Trajectories

    def _start_trajectory(self, action: act.StartTrajectory) -> None:
        before = self._episodes.get(action.trajectory)
        if before is not None:
            self._leave(before)
        episode = Episode(
            trajectory=action.trajectory,
            group=action.group,
            attempt=action.attempt,
            script=self._scripts.script(action.group, self.scheduler.swapper.engine_version),
            began_s=self.now_s,
        )
        self._episodes[action.trajectory] = episode
        self._ask_environment(episode, self._reset(), "reset")

    def _ask_environment(self, episode: Episode, latency_s: float, what: str) -> None:
        episode.began_s = self.now_s
        limit_s = self.world.step_timeout_s
        if latency_s <= limit_s:
            self._put(self.now_s + latency_s, self._environment_answers, episode)
        else:
            reason = f"{what} did not answer within environment.step_timeout_s = {limit_s} s"
            self._put(self.now_s + limit_s, self._lose, (episode, reason))

    def _environment_answers(self, episode: Episode) -> None:
        if episode.is_over:
            return
        script, turn = episode.script, episode.turn
        if turn == 0:
            observed = script.prompt
            if observed >= self.world.max_model_len:
                self._lose((episode, "a prompt leaves no room within inference.max_model_len"))
                return
        else:
            environment = self.world.sim.environment
            if self._happens(environment.failure_probability):
                self._lose((episode, "the simulated environment broke"))
                return
            if self._happens(environment.invalid_probability):
                self._finish(episode, masked=True)
                return
            if turn >= min(len(script.turns), self.world.max_turns):
                self._finish(episode, masked=False)
                return
            observed = script.observations[turn - 1]
            if episode.context + observed >= self.world.max_model_len:
                self._finish(episode, masked=False)
                return
        base = episode.digest
        episode.context += observed
        room = self.world.max_model_len - episode.context
        episode.left = min(script.turns[turn], self.world.max_new_tokens, room)
        episode.turn = turn + 1
        now_s = self._time_s
        self._post(
            TurnReady(
                time_s=now_s,
                trajectory=episode.trajectory,
                attempt=episode.attempt,
                num_context_tokens=episode.context,
                busy_s=now_s - round(episode.began_s, 6),
                base=base,
                digest=episode.digest,
            )
        )

    def _happens(self, probability: float) -> bool:
        return probability > 0 and self._faults.random() < probability

    def _finish(self, episode: Episode, *, masked: bool) -> None:
        now_s = self._time_s
        self._post(
            TrajectoryFinished(
                time_s=now_s,
                trajectory=episode.trajectory,
                attempt=episode.attempt,
                reward=episode.script.reward,
                busy_s=now_s - round(episode.began_s, 6),
                base=episode.digest,
                masked=masked,
            )
        )

    def _lose(self, lost: tuple[Episode, str]) -> None:
        episode, reason = lost
        if episode.is_over:
            return
        now_s = self._time_s
        self._post(
            TrajectoryLost(
                time_s=now_s,
                trajectory=episode.trajectory,
                attempt=episode.attempt,
                ending=Ending.FILTERED,
                reason=reason,
                busy_s=now_s - round(episode.began_s, 6),
            )
        )

    def _end_trajectory(self, action: act.EndTrajectory) -> None:
        episode = self._episodes.pop(action.trajectory, None)
        if episode is not None:
            self._leave(episode)
            if action.keeps_content:
                self._kept[action.trajectory] = episode

    def _forget_content(self, action: act.ForgetContent) -> None:
        for trajectory in action.trajectories:
            del self._kept[trajectory]

    def _leave(self, episode: Episode) -> None:
        """What is still to come of it is not heeded; a request of it comes back at once."""
        episode.is_over = True
        was_there = episode.engine is not None
        self.fleet.forget(episode, self.now_s)
        if was_there:
            self._put(self.now_s, self._request_returns, (episode, 0, FinishReason.ABORT))

    # Requests

    def _submit_request(self, action: act.SubmitRequest) -> None:
        episode = self._episodes[action.trajectory]
        episode.request = action.request
        self.fleet.submit(episode, self.now_s)

    def _expect_engines(self) -> None:
        """Puts the next event of each engine that has changed; earlier ones are out of date."""
        for index in self.fleet.changed:
            next_s = self.fleet.engines[index].next_s()
            self._expected[index] = self._num_put
            if next_s < float("inf"):
                self._put(max(next_s, self.now_s), self._engine_event, (index, self._num_put))
        self.fleet.changed.clear()

    def _engine_event(self, expected: tuple[int, int]) -> None:
        index, number = expected
        if self._expected[index] != number:
            return
        for sequence in self.fleet.collect(index, self.now_s):
            self._return(sequence, self.now_s + self.world.sim.engine.request_s, whole=True)

    def _return(self, sequence: EngineSequence[Episode], at_s: float, *, whole: bool) -> None:
        reason = FinishReason.ABORT
        if whole:
            script = sequence.owner.script
            planned = script.turns[sequence.owner.turn - 1]
            cut = planned > self.world.max_new_tokens
            reason = FinishReason.LENGTH if cut else FinishReason.STOP
        self._put(at_s, self._request_returns, (sequence.owner, sequence.sampled, reason))

    def _request_returns(self, answer: tuple[Episode, int, FinishReason]) -> None:
        episode, num_sampled, reason = answer
        request, episode.request = episode.request, None
        assert request is not None
        if reason is FinishReason.ABORT and num_sampled and num_sampled == episode.left:
            reason = FinishReason.STOP  # the park came with the turn's last token
        base = episode.digest
        episode.context += num_sampled
        episode.num_sampled += num_sampled
        episode.left -= num_sampled
        version = self.scheduler.swapper.engine_version
        self._post(
            RequestEnded(
                time_s=self._time_s,
                trajectory=episode.trajectory,
                attempt=episode.attempt,
                request=request,
                finish_reason=reason,
                spans=(Span(version=version, length=num_sampled),) if num_sampled else (),
                num_cached_tokens=episode.cached,
                base=base,
                digest=episode.digest,
            )
        )
        if reason is not FinishReason.ABORT and not episode.is_over:
            self._ask_environment(episode, self._step(), "step")

    # Timers, signals, memory

    def _set_timer(self, action: act.SetTimer) -> None:
        # A tick late, as the driver's: the rounded clock never reads less than was asked for.
        self._put(max(self.now_s, action.at_s + CLOCK_TICK_S), self._fire, action.timer)

    def _fire(self, timer: str) -> None:
        self._post(TimerFired(time_s=self._time_s, timer=timer))

    def _stop(self, _: None) -> None:
        self._post(StopRequested(time_s=self._time_s, signal=15))

    def _sample_memory(self, action: act.SampleMemory) -> None:
        self._put(max(self.now_s, action.at_s), self._measure, None)

    def _measure(self, _: None) -> None:
        memory = self.device.sample()
        if memory is not None:
            self._post(MemorySampled(time_s=self._time_s, memory=memory))

    # Phases

    def _end_phase(
        self,
        phase: Phase,
        after_s: float,
        *,
        version: Version | None = None,
        parts: frozenset[Part] = frozenset(),
    ) -> None:
        """``parts``: of whom the action concerned, to be reported if memory is measured."""

        def end(_: None) -> None:
            memory = self.device.sample()
            self._post(
                PhaseEnded(
                    time_s=self._time_s,
                    phase=phase,
                    memory=memory,
                    peak=memory,
                    version=version,
                    held=self.device.held(parts) if parts and memory is not None else None,
                )
            )

        self._put(self.now_s + after_s, end, None)

    def _start_ports(self, action: act.StartPorts) -> None:
        self.device.bring(TRAINER_PARTS)
        if self.device.sample() is not None:
            held = self.device.held(TRAINER_PARTS)
            self._put(
                self.now_s + self._swap.start_s / 2,
                lambda _: self._post(PartsReported(time_s=self._time_s, held=held)),
                None,
            )
        self.device.evict(TRAINER_PARTS)
        self.device.bring(ENGINE_PARTS)
        self._end_phase(
            Phase.STARTING, self._swap.start_s, parts=frozenset(ENGINE_PARTS | TRAINER_PARTS)
        )

    def _park(self, action: act.Park) -> None:
        done_s = self.now_s + self._swap.park_s
        for sequence in self.fleet.park(self.now_s):
            self._return(sequence, done_s, whole=False)
        self._end_phase(Phase.PARKING, self._swap.park_s, parts=ENGINE_PARTS)

    def _sleep(self, action: act.Sleep) -> None:
        copied = self.device.evict_engine(action.mode)
        self._end_phase(
            Phase.SLEEPING, self._swap.sleep_s + self._copy_s(copied), parts=ENGINE_PARTS
        )

    def _load_trainer(self, action: act.LoadTrainer) -> None:
        copied = self.device.away(TRAINER_PARTS)
        self.device.bring(TRAINER_PARTS)
        self._end_phase(
            Phase.TRAINER_WAKING, self._swap.load_s + self._copy_s(copied), parts=TRAINER_PARTS
        )

    def _train(self, action: act.Train) -> None:
        episodes = [self._episodes.get(t) or self._kept[t] for t in action.contents]
        num_tokens = sum(e.num_sampled for e in episodes)
        trainer = self.world.sim.trainer
        seconds = trainer.step_s + trainer.token_s * num_tokens / self.world.num_ranks
        digests = tuple([e.digest for e in episodes])
        rewards = sum(e.script.reward for e in episodes) / len(episodes)
        metrics = {
            "num_tokens": float(num_tokens),
            "num_trajectories": float(len(episodes)),
            "reward_mean": rewards,
            "train_s": seconds,
            **self._lags(action.batch, action.version),
        }

        def end(_: None) -> None:
            self._post(
                BatchTrained(
                    time_s=self._time_s,
                    batch=action.batch,
                    version=Version(action.version + 1),
                    digests=digests,
                    num_tokens=num_tokens,
                    metrics=metrics,
                    memory=self.device.sample(),
                    peak=self.device.sample(trains=True),
                )
            )

        self._put(self.now_s + seconds, end, None)

    def _lags(self, batch: BatchId, version: Version) -> Mapping[str, float]:
        buffer = self.scheduler.buffer
        counts: dict[int, int] = {}
        for span in buffer.trained_spans(buffer.leased(batch)):
            counts[span.version] = counts.get(span.version, 0) + span.length
        lags = {lag(version, Version(v)): n for v, n in counts.items()}
        total = sum(lags.values())
        return {
            "lag_mean": sum(k * n for k, n in lags.items()) / total,
            "lag_max": float(max(lags)),
        }

    def _offload_trainer(self, action: act.OffloadTrainer) -> None:
        copied = self.device.bytes_of(action.parts)
        self.device.evict(action.parts)
        seconds = self._swap.offload_s + self._copy_s(copied)
        if action.checkpoint:
            seconds += self._swap.checkpoint_s
            self._put(self.now_s + seconds, self._checkpoint_is_whole, action.version)
        if action.expect:
            seconds += self._swap.verify_s
        self._end_phase(Phase.TRAINER_OFFLOADING, seconds, parts=TRAINER_PARTS)

    def _checkpoint_is_whole(self, version: Version) -> None:
        self._post(CheckpointWritten(time_s=self._time_s, version=version))

    def _wake_weights(self, action: act.WakeWeights) -> None:
        copied = self.device.wake_weights()
        self._end_phase(
            Phase.WEIGHTS_WAKING,
            self._swap.wake_weights_s + self._copy_s(copied),
            parts=ENGINE_PARTS,
        )

    def _publish(self, action: act.Publish) -> None:
        copied = self.device.bytes_of(action.offload)
        self.device.evict(action.offload)
        sent = self.world.sim.memory.weights_bytes
        seconds = self._swap.publish_s + sent / self._swap.publish_bandwidth
        self._end_phase(
            Phase.PUBLISHING,
            seconds + self._copy_s(copied),
            version=self.scheduler.swapper.trainer_version,
            parts=frozenset(ENGINE_PARTS | TRAINER_PARTS),
        )

    def _wake_kv(self, action: act.WakeKv) -> None:
        self.device.bring({Part.KV_CACHE})
        seconds = self._swap.wake_kv_s + (self._swap.verify_s if action.verify else 0.0)
        self._end_phase(Phase.KV_WAKING, seconds, parts=ENGINE_PARTS)

    def _relieve(self, action: act.Relieve) -> None:
        copied = 0
        if action.remedy is Remedy.SLEEP_DEEPER:
            copied = self.device.evict_engine(action.mode or SleepMode.LEVEL_2)
        elif action.remedy is Remedy.OFFLOAD_ALL:
            copied = self.device.bytes_of(action.parts)
            self.device.evict(action.parts)

        def end(_: None) -> None:
            self._post(
                Relieved(
                    time_s=self._time_s,
                    remedy=action.remedy,
                    memory=self.device.sample(),
                    held=self.device.held(ENGINE_PARTS | TRAINER_PARTS),
                )
            )

        self._put(self.now_s + self._copy_s(copied), end, None)

    def _close_run(self, action: act.CloseRun) -> None:
        seconds = self._swap.close_s
        if action.checkpoint:
            seconds += self._swap.checkpoint_s
        self._end_phase(Phase.CLOSING, seconds)

    def _copy_s(self, num_bytes: int) -> float:
        return num_bytes / self._swap.host_bandwidth
