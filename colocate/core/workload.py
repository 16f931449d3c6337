"""Who is decoding, who waits for an environment and since when, as events and commands tell it.

A ledger of its own beside the buffer's: it keeps what estimates need (times, mean concurrency,
what was prefilled) and is the only one that feeds them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

from colocate.core.actions import (
    Action,
    CutEvaluation,
    EndTrajectory,
    GiveUpGroup,
    StartTrajectory,
    SubmitEvaluation,
    SubmitRequest,
)
from colocate.core.decoding import DecodeModel
from colocate.core.events import (
    EpisodeResumed,
    EvaluationRequestEnded,
    Event,
    RequestEnded,
    Restored,
    TrajectoryFinished,
    TurnReady,
)
from colocate.core.survival import Survival
from colocate.core.trajectory import State
from colocate.core.types import Ending, FinishReason, TrajectoryId

LAST_TURN_BIN = 24
"""Turns beyond this are counted together."""


class Stage(Enum):
    """Of a trajectory that is not finished."""

    BEGINNING = auto()
    WAITING = auto()
    QUEUED = auto()
    DECODING = auto()
    DONE = auto()


@dataclass(slots=True)
class _Member:
    attempt: int
    stage: Stage
    since_s: float
    turn: int = 0
    num_turn_tokens: int = 0
    num_tokens: int = 0
    num_context: int = 0
    num_cached: int = 0
    epoch: int = 0
    resumed: bool = False
    wants_turn: bool = False  # of an earlier life's, until it is resumed


@dataclass(slots=True)
class _Request:
    trajectory: TrajectoryId
    began_s: float
    concurrency_integral: float
    prefilled: float
    num_own: float


class TurnEnds:
    """P(the episode is over | its n-th answer has come): the completion hazard by turn."""

    def __init__(self) -> None:
        self._over = [0.0] * (LAST_TURN_BIN + 1)
        self._more = [0.0] * (LAST_TURN_BIN + 1)

    def observe(self, turn: int, *, is_over: bool) -> None:
        (self._over if is_over else self._more)[min(turn, LAST_TURN_BIN)] += 1

    def hazard(self, turn: int) -> float:
        """Shrunk towards the mean of all turns, as by two answers more."""
        over, more = sum(self._over), sum(self._more)
        mean = (over + 1) / (over + more + 2)
        n = min(turn, LAST_TURN_BIN)
        return (self._over[n] + 2 * mean) / (self._over[n] + self._more[n] + 2)

    def snapshot(self) -> dict[str, list[float]]:
        return {"over": list(self._over), "more": list(self._more)}

    def restore(self, data: Mapping[str, Sequence[float]]) -> None:
        self._over = [float(n) for n in data["over"]]
        self._more = [float(n) for n in data["more"]]


class Workload:
    """Attributes:
    decode: Time of a request by its tokens, concurrency and prefill.
    begin_s, step_s: How long environments take to begin, and to answer, in seconds.
    turn_tokens: Tokens of a turn.
    turns: How likely an episode is over after its n-th turn.
    num_generated: Tokens that were sampled so far, useful or not.
    num_discarded: Of them, those that will never be trained.
    num_reread: Tokens of context that were read again, since a swap had dropped their KV.
    """

    def __init__(self) -> None:
        self.decode = DecodeModel()
        self.begin_s = Survival(1e-4)
        self.step_s = Survival(1e-4)
        self.turn_tokens = Survival(1.0, num_octaves=24)
        self.turns = TurnEnds()
        self.num_generated = 0
        self.num_discarded = 0
        self.num_reread = 0
        self.num_waiting = 0
        self.num_queued = 0
        self.num_parked_context = 0  # of unfinished trajectories that have sampled something
        self.num_trained = 0
        self.num_trained_tokens = 0
        self.decoding_s = 0.0  # seconds of all requests together
        self._members: dict[TrajectoryId, _Member] = {}
        self._requests: dict[str, _Request] = {}
        self._evaluating: set[str] = set()
        self._epoch = 0
        self._now_s = 0.0
        self._concurrency_integral = 0.0
        self._prefilled = 0.0
        self._prefilled_before_now = 0.0
        self._sum_began_s = 0.0

    @property
    def num_decoding(self) -> int:
        return len(self._requests)

    @property
    def num_unfinished(self) -> int:
        return self.num_waiting + self.num_queued + len(self._requests)

    # What comes in

    def drop_kv(self) -> None:
        """Weights were published: from here on every context is read anew."""
        self._epoch += 1

    def learn(self, event: Event) -> None:
        self._pass_time(event.time_s)
        match event:
            case TurnReady():
                self._turn_ready(event)
            case Restored():
                self._restored(event)
            case EpisodeResumed():
                self._resumed(event)
            case RequestEnded():
                self._request_ended(event)
            case EvaluationRequestEnded():
                self._evaluating.discard(event.request)
            case TrajectoryFinished():
                self._finished(event)
            case _:
                pass

    def follow(self, action: Action, time_s: float) -> None:
        match action:
            case StartTrajectory():
                self._cut_off(action.trajectory, time_s)
                self._discard(action.trajectory)
                begun = _Member(action.attempt, Stage.BEGINNING, time_s)
                self._members[action.trajectory] = begun
                self._enter(begun)
            case SubmitRequest():
                self._submit(action, time_s)
            case SubmitEvaluation():
                self._evaluating.add(action.request)
            case CutEvaluation():
                self._evaluating.clear()
            case EndTrajectory():
                self._cut_off(action.trajectory, time_s)
                if action.ending is not Ending.TRAINED:
                    self._discard(action.trajectory)
                member = self._members.pop(action.trajectory, None)
                if member is not None and action.ending is Ending.TRAINED:
                    self.num_trained += 1
                    self.num_trained_tokens += member.num_tokens
            case GiveUpGroup():
                for trajectory in action.trajectories:
                    self._leave(self._members.pop(trajectory, None))
            case _:
                pass

    # What policies ask

    def inflight_tokens(self, time_s: float) -> float:
        """What the running requests have sampled so far and not reported, estimated."""
        fit = self.decode.fit()
        count = len(self._requests)
        if fit is None or not count:
            return 0.0
        elapsed_s = count * time_s - self._sum_began_s
        return max(0.0, elapsed_s) / fit.token_s(count)

    def ages(self, stage: Stage, time_s: float) -> list[float]:
        """Seconds that each trajectory has been in a stage."""
        return [time_s - m.since_s for m in self._members.values() if m.stage is stage]

    def decoding_ages(self, time_s: float) -> list[float]:
        """Tokens that each running request has sampled of its turn, estimated."""
        fit = self.decode.fit()
        if fit is None:
            return [0.0] * len(self._requests)
        token_s = fit.token_s(len(self._requests))
        ages = []
        for request in self._requests.values():
            member = self._members.get(request.trajectory)
            before = member.num_turn_tokens if member else 0
            ages.append(before + (time_s - request.began_s) / token_s)
        return ages

    def quiet_chance(self, time_s: float, ahead_s: float) -> float:
        """P(no environment answers within ``ahead_s``)."""
        chance = 1.0
        for stage, lasting in ((Stage.WAITING, self.step_s), (Stage.BEGINNING, self.begin_s)):
            for age_s in self.ages(stage, time_s):
                chance *= lasting.still(age_s, ahead_s)
        return chance

    def end_hazard(self) -> float:
        """Mean P(over at the next answer) of the unfinished."""
        hazards = [self.turns.hazard(m.turn) for m in self._members.values() if _is_unfinished(m)]
        return sum(hazards) / len(hazards) if hazards else self.turns.hazard(1)

    def turn_s(self) -> float:
        """Seconds of a typical turn: its tokens at the present concurrency, and its answer."""
        fit = self.decode.fit()
        token_s = 0.0 if fit is None else fit.token_s(max(1, len(self._requests)))
        return max(1e-6, self.turn_tokens.quantile(0.5) * token_s + self.step_s.quantile(0.5))

    def completion(
        self, trajectory: TrajectoryId, time_s: float, ahead_s: float, turn_s: float
    ) -> float:
        """P(an unfinished trajectory is finished ``ahead_s`` from now).

        It must end its present turn, and be over then or after one of the turns of ``turn_s``
        that fit into what is left.
        """
        member = self._members.get(trajectory)
        fit = self.decode.fit()
        if member is None or fit is None or member.stage is Stage.DONE:
            return 0.0 if member is None or fit is None else 1.0
        num_turns = 1 + max(0.0, ahead_s - turn_s) / turn_s
        goes_on = 1 - self.turns.hazard(max(1, member.turn))
        over = 1 - math.pow(goes_on, num_turns)
        age_s = time_s - member.since_s
        if member.stage is Stage.WAITING:
            return over * (1 - self.step_s.still(age_s, ahead_s))
        token_s = fit.token_s(max(1, len(self._requests)))
        answered = self.step_s.quantile(0.5)
        left_s = max(0.0, ahead_s - answered)
        done = member.num_turn_tokens
        if member.stage is Stage.DECODING:
            return over * (1 - self.turn_tokens.still(done + age_s / token_s, left_s / token_s))
        return over * (1 - self.turn_tokens.still(done, left_s / 2 / token_s))

    def snapshot(self) -> dict[str, Any]:
        """What was learned; not who is where, which ``Restored`` tells a new life."""
        return {
            "decode": self.decode.snapshot(),
            "begin_s": self.begin_s.snapshot(),
            "step_s": self.step_s.snapshot(),
            "turn_tokens": self.turn_tokens.snapshot(),
            "turns": self.turns.snapshot(),
            "trained": [self.num_trained, self.num_trained_tokens],
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        self.decode.restore(data["decode"])
        self.begin_s.restore(data["begin_s"])
        self.step_s.restore(data["step_s"])
        self.turn_tokens.restore(data["turn_tokens"])
        self.turns.restore(data["turns"])
        self.num_trained, self.num_trained_tokens = (int(n) for n in data["trained"])

    # Inside

    def _pass_time(self, time_s: float) -> None:
        if time_s > self._now_s:
            passed_s = time_s - self._now_s
            # An evaluation's requests slow the others down, and bring nothing themselves.
            num_running = len(self._requests) + len(self._evaluating)
            self._concurrency_integral += num_running * passed_s
            self.decoding_s += len(self._requests) * passed_s
            self._now_s = time_s
            self._prefilled_before_now = self._prefilled

    def _member(self, trajectory: TrajectoryId, attempt: int) -> _Member | None:
        """None where the event comes too late, as for the scheduler."""
        member = self._members.get(trajectory)
        return member if member is not None and member.attempt == attempt else None

    def _latency(self, member: _Member) -> Survival:
        return self.step_s if member.turn else self.begin_s

    def _move(self, member: _Member, stage: Stage, time_s: float) -> None:
        self._leave(member)
        member.stage, member.since_s = stage, time_s
        self._enter(member)

    def _enter(self, member: _Member) -> None:
        stage = member.stage
        self.num_waiting += stage in (Stage.BEGINNING, Stage.WAITING)
        self.num_queued += stage is Stage.QUEUED
        if stage is not Stage.DONE and member.num_tokens:
            self.num_parked_context += member.num_context

    def _leave(self, member: _Member | None) -> None:
        if member is None:
            return
        self.num_waiting -= member.stage in (Stage.BEGINNING, Stage.WAITING)
        self.num_queued -= member.stage is Stage.QUEUED
        if member.stage is not Stage.DONE and member.num_tokens:
            self.num_parked_context -= member.num_context

    def _cut_off(self, trajectory: TrajectoryId, time_s: float) -> None:
        """It ends where it is. What it was at takes longer than that: the bound on staleness ends
        the slowest, and without these every tail would seem shorter than it is."""
        member = self._members.get(trajectory)
        self._leave(member)
        if member is None:
            return
        if member.stage in (Stage.BEGINNING, Stage.WAITING):
            self._latency(member).cut_off(max(0.0, time_s - member.since_s))
        elif member.stage is not Stage.DONE and member.num_turn_tokens:
            self.turn_tokens.cut_off(member.num_turn_tokens)

    def _discard(self, trajectory: TrajectoryId) -> None:
        if member := self._members.get(trajectory):
            self.num_discarded += member.num_tokens

    def _turn_ready(self, event: TurnReady) -> None:
        member = self._member(event.trajectory, event.attempt)
        if member is None:
            return
        self._latency(member).end(event.busy_s)
        if member.turn:
            self.turns.observe(member.turn, is_over=False)
        self._leave(member)
        member.num_context = event.num_context_tokens
        member.num_turn_tokens = 0
        member.stage, member.since_s = Stage.QUEUED, event.time_s
        self._enter(member)

    def _restored(self, event: Restored) -> None:
        """Who was there in an earlier life; its tokens are not counted as generated again."""
        for record in event.buffer.residents.trajectories:
            if record.state is State.ENDED:
                continue
            stage = Stage.WAITING if record.is_unfinished else Stage.DONE
            member = _Member(record.attempt, stage, event.time_s, turn=record.num_turns // 2)
            member.num_tokens = record.num_sampled_tokens
            member.num_context = record.num_context_tokens
            member.wants_turn = record.num_turns % 2 == 1
            member.epoch = self._epoch - 1  # no engine has read it
            self._members[record.id] = member
            self._enter(member)

    def _resumed(self, event: EpisodeResumed) -> None:
        member = self._member(event.trajectory, event.attempt)
        if member is not None:
            self._move(member, Stage.QUEUED if member.wants_turn else Stage.WAITING, event.time_s)

    def _submit(self, action: SubmitRequest, time_s: float) -> None:
        member = self._members.get(action.trajectory)
        if member is None:
            return
        is_warm = member.epoch == self._epoch
        num_own = max(0, member.num_context - (member.num_cached if is_warm else 0))
        member.resumed = not is_warm and member.num_tokens > 0
        self._requests[action.request] = _Request(
            action.trajectory,
            time_s,
            self._concurrency_integral,
            # All that is submitted in one instant is read before any of it is decoded.
            self._prefilled_before_now,
            num_own,
        )
        self._sum_began_s += time_s
        self._prefilled += num_own
        self._move(member, Stage.DECODING, time_s)

    def _request_ended(self, event: RequestEnded) -> None:
        request = self._requests.pop(event.request, None)
        num_tokens = sum(span.length for span in event.spans)
        self.num_generated += num_tokens
        if request is None:
            self.num_discarded += num_tokens
            return
        self._sum_began_s -= request.began_s
        self._observe(request, event, num_tokens)
        member = self._member(event.trajectory, event.attempt)
        if member is None:
            self.num_discarded += num_tokens
            return
        if member.resumed and num_tokens:
            self.num_reread += max(0, member.num_context - event.num_cached_tokens)
            member.resumed = False
        self._leave(member)
        member.num_tokens += num_tokens
        member.num_turn_tokens += num_tokens
        member.num_context += num_tokens
        member.num_cached, member.epoch = member.num_context, self._epoch
        member.since_s = event.time_s
        if event.finish_reason is FinishReason.ABORT:
            member.stage = Stage.QUEUED
        else:
            self.turn_tokens.end(member.num_turn_tokens)
            member.turn += 1
            member.stage = Stage.WAITING
        self._enter(member)

    def _observe(self, request: _Request, event: RequestEnded, num_tokens: int) -> None:
        duration_s = event.time_s - request.began_s
        if duration_s <= 0:
            return
        self.decode.observe(
            num_tokens=num_tokens + event.num_dropped_tokens,
            duration_s=duration_s,
            concurrency=(self._concurrency_integral - request.concurrency_integral) / duration_s,
            num_prefilled=self._prefilled - request.prefilled,
        )

    def _finished(self, event: TrajectoryFinished) -> None:
        member = self._member(event.trajectory, event.attempt)
        if member is None:
            return
        self._latency(member).end(event.busy_s)
        self.turns.observe(member.turn, is_over=True)
        self._move(member, Stage.DONE, event.time_s)


def _is_unfinished(member: _Member) -> bool:
    return member.stage is not Stage.DONE
