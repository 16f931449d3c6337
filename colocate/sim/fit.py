"""The simulated world of a real run: parameters fitted to its journal.

What is fitted, and how:

- *decoding*: for every request that ended by itself, its time from submission to return against
  ``request_s + n pass_s + n b sequence_s + p prefill_token_s`` by least squares with coefficients
  that are not negative, where ``n`` is its tokens, ``b`` the requests in flight on its engine while
  it was there, averaged over time, and ``p`` the tokens of all prompts that its engine computed
  meanwhile, its own among them;
- *training*: each step's time against its trained tokens, in the same way;
- *phases*: the mean of each phase over the swaps, so that their sum is the run's; a checkpoint and
  a verification by the difference between phases with and without;
- *environment*: the measured latencies themselves, resets and steps apart, and the shares of steps
  that failed or were invalid. A step whose trajectory ended before it was answered has shown only
  that it takes longer: their distribution is the product-limit estimate (Kaplan and Meier 1958).
  Without these the tail would be missing, since it is what the bound on staleness cuts;
- *trajectories*: the real scripts, group by group. A simulated group takes the scripts of a real
  group that began at about the same version, so that what the agent learns (lengths change) and
  what members of a group share (a hard prompt is hard for all) stays in.

A trajectory that was cut (expired, or resident at exit) has shown only how it began. Its script
goes on as that of a whole one with the same number of turns or more; leaving it out would make the
simulated trajectories shorter than the real.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import numpy as np

from colocate.config import (
    RunConfig,
    SimConfig,
    SimEngineConfig,
    SimEnvironmentConfig,
    SimSwapConfig,
    SimTrainerConfig,
)
from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.phases import Phase
from colocate.core.types import FinishReason, GroupId, TrajectoryId
from colocate.journal import JournalError, read_journal
from colocate.sim.episodes import Script
from colocate.sim.latency_fit import empirical
from colocate.sim.world import World, make_world

MIN_REQUESTS = 30
"""Fewer tell nothing of how an engine's rate depends on its load."""

MIN_GROUPS = 4
"""A simulated group is chosen among at least so many real ones."""


class UnfitRunError(Exception):
    """A run that a simulation cannot be fitted to; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    world: World
    scripts: FittedScripts


def fit_run(run_dir: Path, config: RunConfig) -> Fit:
    """Fits a world to the run in a folder; limits and counts come from ``config``.

    Raises:
        UnfitRunError: no whole journal, or too little in it.
    """
    story = _Story()
    try:
        for entry in read_journal(run_dir / "events.jsonl"):
            story.see(entry.event, entry.actions)
        summary = json.loads((run_dir / "summary.json").read_text())
        wall_s = float(summary["wall_s"])
        recoveries = summary.get("recoveries") or {"engine": 0, "trainer": 0}
        num_restarts = int(recoveries["engine"]) + int(recoveries["trainer"])
    except (JournalError, OSError, KeyError, TypeError, ValueError) as error:
        raise UnfitRunError(f"{run_dir} cannot be read as a run: {error}") from error
    if num_restarts:
        raise UnfitRunError(
            f"{run_dir} lost {num_restarts} processes and started them anew: its times tell more "
            "of that than of its work. Fit to a run that lost none"
        )
    if len(story.requests) < MIN_REQUESTS or not story.steps or not story.swaps:
        raise UnfitRunError(
            f"{run_dir} is too short to fit a simulation to: it has {len(story.requests)} whole "
            f"requests (at least {MIN_REQUESTS} are needed), {len(story.steps)} training steps and "
            f"{len(story.swaps)} swaps (at least one each)"
        )
    sim = SimConfig(
        from_run=config.sim.from_run,
        trace_fraction=config.sim.trace_fraction,
        audit=config.sim.audit,
        engine=_fit_engine(story, config.inference.num_engines),
        trainer=_fit_trainer(story, config.trainer.num_ranks),
        swap=_fit_swap(story),
        environment=_fit_environment(story),
    )
    world = replace(
        make_world(config.model_copy(update={"sim": sim})),
        kv_tokens=None,
        outside_s=max(0.0, wall_s - story.now_s),
    )
    scripts = FittedScripts(story.scripts(), Random(f"{config.seed}/scripts"))
    return Fit(world=world, scripts=scripts)


# What happened


@dataclass(slots=True)
class _Life:
    group: GroupId
    version: int
    prompt: int = 0
    turns: list[int] = field(default_factory=list)
    observations: list[int] = field(default_factory=list)
    context: int = 0
    turn_is_open: bool = False
    reward: float = 0.0
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class _Request:
    began_s: float
    ended_s: float
    num_tokens: int
    num_computed: int


@dataclass(slots=True)
class _Story:
    """A journal, gathered by what is fitted."""

    now_s: float = 0.0
    lives: dict[TrajectoryId, _Life] = field(default_factory=dict)
    requests: list[_Request] = field(default_factory=list)
    flights: list[_Request] = field(default_factory=list)
    steps: list[tuple[float, int]] = field(default_factory=list)
    swaps: list[act.CloseSwap] = field(default_factory=list)
    resets_s: list[float] = field(default_factory=list)
    answers_s: list[float] = field(default_factory=list)
    unanswered_s: list[float] = field(default_factory=list)
    num_failed: int = 0
    num_invalid: int = 0
    start_s: float = 0.0
    close_s: float = 0.0
    offloads: list[tuple[bool, bool, float]] = field(default_factory=list)
    kv_wakes: list[tuple[bool, float]] = field(default_factory=list)
    _earlier: dict[TrajectoryId, _Life] = field(default_factory=dict)  # begun in an earlier life
    _submitted: dict[str, tuple[float, int]] = field(default_factory=dict)
    _waiting: dict[TrajectoryId, float] = field(default_factory=dict)
    _version: int = 0
    _began_s: dict[type[act.Action], tuple[float, act.Action]] = field(default_factory=dict)

    def see(self, event: ev.Event, actions: Sequence[act.Action]) -> None:
        self.now_s = event.time_s
        match event:
            case ev.TurnReady():
                self._turn_ready(event)
            case ev.RequestEnded():
                self._request_ended(event)
            case ev.TrajectoryFinished():
                self._answered(event.trajectory, event.busy_s)
                life = self._life(event.trajectory)
                life.reward, life.is_whole = event.reward, True
                self.num_invalid += event.masked
            case ev.TrajectoryLost():
                self._answered(event.trajectory, event.busy_s)
                self.num_failed += "did not answer within" not in event.reason
            case ev.Restored():
                self._restored(event)
            case ev.PhaseEnded():
                self._phase_ended(event)
            case ev.BatchTrained():
                began_s, _ = self._began_s[act.Train]
                self.steps.append((event.time_s - began_s, event.num_tokens))
            case _:
                pass
        for action in actions:
            self._act(action, event.time_s)

    def _act(self, action: act.Action, time_s: float) -> None:
        match action:
            case act.StartTrajectory():
                self.lives[action.trajectory] = _Life(action.group, self._version)
            case act.SubmitRequest():
                context = self._life(action.trajectory).context
                self._submitted[action.request] = (time_s, context)
            case act.EndTrajectory() if action.trajectory in self._waiting:
                self.unanswered_s.append(time_s - self._waiting.pop(action.trajectory))
            case act.CloseSwap():
                self.swaps.append(action)
            case act.Train() | act.PhaseAction():
                self._began_s[type(action)] = (time_s, action)
            case _:
                pass

    def _life(self, trajectory: TrajectoryId) -> _Life:
        return self.lives.get(trajectory) or self._earlier[trajectory]

    def _restored(self, event: ev.Restored) -> None:
        for record in event.buffer.residents.trajectories:
            life = _Life(record.group, self._version)
            life.prompt = life.context = record.num_context_tokens
            self._earlier[record.id] = life

    def _answered(self, trajectory: TrajectoryId, busy_s: float) -> None:
        begun = self._life(trajectory).prompt > 0
        (self.answers_s if begun else self.resets_s).append(busy_s)
        self._waiting.pop(trajectory, None)

    def _turn_ready(self, event: ev.TurnReady) -> None:
        self._answered(event.trajectory, event.busy_s)
        life = self._life(event.trajectory)
        if life.prompt:
            life.observations.append(event.num_context_tokens - life.context)
        else:
            life.prompt = event.num_context_tokens
        life.context = event.num_context_tokens
        life.turns.append(0)
        life.turn_is_open = True

    def _request_ended(self, event: ev.RequestEnded) -> None:
        began_s, context = self._submitted.pop(event.request)
        num_tokens = sum(span.length for span in event.spans)
        computed = max(0, context - event.num_cached_tokens)
        request = _Request(began_s, event.time_s, num_tokens, computed)
        self.flights.append(request)
        life = self._life(event.trajectory)
        if life.turns:
            life.turns[-1] += num_tokens
            life.context += num_tokens
        if event.finish_reason is not FinishReason.ABORT:
            life.turn_is_open = False
            self.requests.append(request)
            self._waiting[event.trajectory] = event.time_s

    def _phase_ended(self, event: ev.PhaseEnded) -> None:
        match event.phase:
            case Phase.STARTING:
                self.start_s = event.time_s
            case Phase.PUBLISHING:
                self._version = event.version or 0
            case Phase.CLOSING if act.CloseRun in self._began_s:
                self.close_s = event.time_s - self._began_s[act.CloseRun][0]
            case Phase.TRAINER_OFFLOADING:
                began_s, action = self._began_s[act.OffloadTrainer]
                assert isinstance(action, act.OffloadTrainer)
                self.offloads.append((action.checkpoint, action.expect, event.time_s - began_s))
            case Phase.KV_WAKING:
                began_s, wake = self._began_s[act.WakeKv]
                assert isinstance(wake, act.WakeKv)
                self.kv_wakes.append((wake.verify, event.time_s - began_s))
            case _:
                pass

    def scripts(self) -> list[tuple[int, list[Script]]]:
        """Of each group: the version it began at, and its members' scripts, cut ones completed."""
        whole = [life for life in self.lives.values() if life.is_whole]
        by_turns: dict[int, list[_Life]] = defaultdict(list)
        for life in whole:
            for num_turns in range(1, len(life.turns) + 1):
                by_turns[num_turns].append(life)
        random = Random(0)
        groups: dict[GroupId, list[Script]] = defaultdict(list)
        versions: dict[GroupId, int] = {}
        for life in self.lives.values():
            script = _script(life, by_turns, random)
            if script is not None:
                groups[life.group].append(script)
                versions.setdefault(life.group, life.version)
        return [(versions[group], members) for group, members in groups.items()]


def _script(life: _Life, by_turns: dict[int, list[_Life]], random: Random) -> Script | None:
    """None where nothing is known of it but that it began."""
    if not life.turns:
        return None
    if life.is_whole:
        turns, observations, reward = life.turns, life.observations, life.reward
    else:
        # As long as the longest that came so far, where none came farther.
        num_turns = min(len(life.turns), max(by_turns, default=0))
        if not num_turns:
            return None
        other = random.choice(by_turns[num_turns])
        turns = life.turns[:num_turns] + other.turns[num_turns:]
        if life.turn_is_open:
            turns[num_turns - 1] = max(turns[num_turns - 1], other.turns[num_turns - 1])
        observations = life.observations[: num_turns - 1] + other.observations[num_turns - 1 :]
        reward = other.reward
    return Script(
        prompt=life.prompt,
        turns=tuple(max(1, n) for n in turns),
        observations=tuple(observations),
        reward=reward,
    )


class FittedScripts:
    """Real groups' scripts, taken again. ``groups`` are of (version at its beginning, scripts)."""

    def __init__(self, groups: Sequence[tuple[int, Sequence[Script]]], random: Random) -> None:
        self._random = random
        self._groups = sorted(groups, key=lambda group: group[0])
        self._versions = np.array([version for version, _ in self._groups])
        self._pools: dict[int, tuple[int, int]] = {}
        self._taken: dict[GroupId, list[Script]] = {}

    def script(self, group: GroupId, version: int) -> Script:
        left = self._taken.get(group)
        if not left:
            begin, end = self._pool(version)
            chosen = self._groups[self._random.randrange(begin, end)][1]
            left = self._taken[group] = self._random.sample(chosen, len(chosen))
        return left.pop()

    def _pool(self, version: int) -> tuple[int, int]:
        """The groups that began at this version, or, where those are few, at the nearest ones."""
        if version not in self._pools:
            begin = int(np.searchsorted(self._versions, version, "left"))
            end = int(np.searchsorted(self._versions, version, "right"))
            while end - begin < min(MIN_GROUPS, len(self._groups)):
                below = version - self._versions[begin - 1] if begin > 0 else np.inf
                above = self._versions[end] - version if end < len(self._groups) else np.inf
                if below <= above:
                    begin -= 1
                else:
                    end += 1
            self._pools[version] = (begin, end)
        return self._pools[version]


# Regressions


def least_squares(columns: Sequence[np.ndarray], values: np.ndarray) -> np.ndarray:
    """Coefficients, none negative, of the columns that explain the values best.

    The active-set method of Lawson and Hanson, *Solving Least Squares Problems* (1974), chapter 23,
    by trying every set of columns: there are few.
    """
    matrix = np.stack(columns, axis=1)
    best, best_error = np.zeros(len(columns)), float(np.sum(values**2))
    for mask in range(1, 2 ** len(columns)):
        chosen = [i for i in range(len(columns)) if mask >> i & 1]
        solution, *_ = np.linalg.lstsq(matrix[:, chosen], values, rcond=None)
        if np.any(solution < 0):
            continue
        error = float(np.sum((matrix[:, chosen] @ solution - values) ** 2))
        if error < best_error - 1e-12:
            best, best_error = np.zeros(len(columns)), error
            best[chosen] = solution
    return best


def _fit_engine(story: _Story, num_engines: int) -> SimEngineConfig:
    began = np.array([r.began_s for r in story.requests])
    ended = np.array([r.ended_s for r in story.requests])
    tokens = np.array([r.num_tokens for r in story.requests], dtype=float)
    seconds = ended - began
    load = _mean_load(story.flights, began, ended) / num_engines
    computed = _computed_within(story.flights, began, ended) / num_engines
    request_s, pass_s, sequence_s, prefill_token_s = least_squares(
        [np.ones_like(tokens), tokens, tokens * load, computed], seconds
    )
    return SimEngineConfig(
        pass_s=max(1e-9, float(pass_s)),
        sequence_s=float(sequence_s),
        prefill_token_s=float(prefill_token_s),
        request_s=float(request_s),
    )


def _mean_load(flights: Iterable[_Request], began: np.ndarray, ended: np.ndarray) -> np.ndarray:
    """Requests in flight, averaged over each interval: by the integral of their number."""
    changes = sorted([(r.began_s, 1) for r in flights] + [(r.ended_s, -1) for r in flights])
    times = np.array([time_s for time_s, _ in changes])
    counts = np.cumsum([change for _, change in changes])
    area = np.concatenate([[0.0], np.cumsum(np.diff(times) * counts[:-1])])
    spans = np.maximum(ended - began, 1e-9)
    mean = (np.interp(ended, times, area) - np.interp(began, times, area)) / spans
    return np.asarray(np.maximum(1.0, mean))


def _computed_within(
    flights: Iterable[_Request], began: np.ndarray, ended: np.ndarray
) -> np.ndarray:
    """Tokens of prompts that were handed in from each interval's beginning to its end."""
    ordered = sorted(flights, key=lambda r: r.began_s)
    times = np.array([r.began_s for r in ordered])
    sums = np.concatenate([[0], np.cumsum([r.num_computed for r in ordered])])
    up_to = sums[np.searchsorted(times, ended, "left")]
    before = sums[np.searchsorted(times, began, "left")]
    return np.asarray(up_to - before, dtype=float)


def _fit_trainer(story: _Story, num_ranks: int) -> SimTrainerConfig:
    seconds = np.array([s for s, _ in story.steps])
    tokens = np.array([n for _, n in story.steps], dtype=float)
    step_s, token_s = least_squares([np.ones_like(tokens), tokens], seconds)
    return SimTrainerConfig(step_s=float(step_s), token_s=float(token_s) * num_ranks)


def _fit_swap(story: _Story) -> SimSwapConfig:
    def mean(phase: Phase) -> float:
        return float(np.mean([swap.phase_s.get(phase, 0.0) for swap in story.swaps]))

    checkpointed = [s for saves, _, s in story.offloads if saves]
    plain = [s for saves, _, s in story.offloads if not saves]
    verified = [s for verifies, s in story.kv_wakes if verifies]
    unverified = [s for verifies, s in story.kv_wakes if not verifies]
    offload_s, checkpoint_s = _apart(plain, checkpointed)
    wake_kv_s, verify_s = _apart(unverified, verified)
    return SimSwapConfig(
        start_s=story.start_s,
        park_s=mean(Phase.PARKING),
        sleep_s=mean(Phase.SLEEPING),
        load_s=mean(Phase.TRAINER_WAKING),
        offload_s=offload_s,
        wake_weights_s=mean(Phase.WEIGHTS_WAKING),
        publish_s=mean(Phase.PUBLISHING),
        wake_kv_s=wake_kv_s,
        verify_s=verify_s,
        checkpoint_s=checkpoint_s,
        close_s=story.close_s,
    )


def _apart(without: Sequence[float], with_it: Sequence[float]) -> tuple[float, float]:
    """Seconds of the thing itself, and of what comes on top of it now and then."""
    if not without:
        return (float(np.mean(with_it)) if with_it else 0.0), 0.0
    base_s = float(np.mean(without))
    return base_s, max(0.0, float(np.mean(with_it)) - base_s) if with_it else 0.0


def _fit_environment(story: _Story) -> SimEnvironmentConfig:
    num_steps = max(1, len(story.answers_s))
    return SimEnvironmentConfig(
        reset=empirical(story.resets_s),
        step=empirical(story.answers_s, story.unanswered_s),
        failure_probability=min(1.0, story.num_failed / num_steps),
        invalid_probability=min(1.0, story.num_invalid / num_steps),
    )
