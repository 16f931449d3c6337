"""The cost model: what each part of the cycle costs, learned online from the run's own events.

It reads the events and commands that pass through the scheduler and nothing else, so a replay
learns the same. ``docs/when-to-swap.md`` says what it is for; ``snapshot`` and ``restore`` carry
it across a restart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from colocate.core.actions import Action, AdoptPlan, CloseSwap, Train
from colocate.core.buffer_snapshot import BufferSnapshot
from colocate.core.estimates import Estimate, RobustLine
from colocate.core.events import BatchTrained, Event, PartsReported, PhaseEnded, Restored
from colocate.core.memory import EVICTED
from colocate.core.phases import SWAP, Phase
from colocate.core.types import TRAINER_PARTS, Part
from colocate.core.workload import Workload

SCHEMA = 2
MEMORY_CYCLES = 8.0
"""Cycles after which one counts 1/e in the average."""
MIN_CYCLES = 3.0

OVERHEAD = tuple(phase for phase in SWAP if phase is not Phase.TRAINING)
"""The phases of a swap in which nothing is generated and nothing is trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SwapCost:
    """Seconds. ``phase_s``: by phase; ``reprefill_s``: to read again what a swap parks now."""

    phase_s: Mapping[Phase, Estimate]
    reprefill_s: Estimate

    @classmethod
    def assumed(cls, seconds: float, reprefill_s: Estimate) -> SwapCost:
        """Before one was seen: the whole is a guess, and its error is not known."""
        return cls(phase_s={Phase.PARKING: Estimate(seconds, math.inf)}, reprefill_s=reprefill_s)

    @property
    def moves_s(self) -> Estimate:
        """Park, sleep, load, offload, reload, publish, wake."""
        total = Estimate(0.0, 0.0)
        for estimate in self.phase_s.values():
            total += estimate
        return total

    @property
    def total_s(self) -> Estimate:
        return self.moves_s + self.reprefill_s


class CostModel:
    """Attributes:
    workload: Decoding, environments, completion.
    num_cycles: Swaps that were seen from end to end.
    """

    def __init__(self) -> None:
        self.workload = Workload()
        self.num_cycles = 0
        self._phases: dict[Phase, RobustLine] = {phase: RobustLine() for phase in OVERHEAD}
        self._training = RobustLine()
        self._parts: dict[Part, int] = {}
        self._bytes: dict[Phase, float] = {}
        self._evicted: frozenset[Part] = TRAINER_PARTS
        self._train_began_s: float | None = None
        # The average over cycles: useful tokens, and the seconds of rollout and swap.
        self._tokens = 0.0
        self._seconds = 0.0
        self._rollout_s: float | None = None
        self._rollouts_s = 0.0
        self._num_rollouts = 0.0  # the older, the less each counts; as in _rollouts_s
        self._decoding_s = 0.0
        self._resident_s = 0.0
        self._num_begun = 0
        self._is_first = True
        self._decoding_before_s = 0.0
        # Where the present cycle began.
        self._generated_before = 0
        self._discarded_before = 0
        self._reread_before = 0

    # What comes in

    def learn(self, event: Event) -> None:
        """A fact that the scheduler has accepted."""
        self.workload.learn(event)
        match event:
            case BatchTrained():
                if self._train_began_s is not None:
                    self._training.observe(event.num_tokens, event.time_s - self._train_began_s)
                self._train_began_s = None
            case PartsReported() | PhaseEnded():
                for part, size in (event.held or {}).items():
                    self._parts[part] = max(size, self._parts.get(part, 0))
                if isinstance(event, PhaseEnded) and event.phase is Phase.PUBLISHING:
                    self.workload.drop_kv()
            case _:
                pass

    def follow(self, actions: Sequence[Action], time_s: float) -> None:
        """Commands that the scheduler has given."""
        for action in actions:
            self.workload.follow(action, time_s)
            match action:
                case Train():
                    self._train_began_s = time_s
                case AdoptPlan():
                    self._plan(action)
                case CloseSwap():
                    self._close(action)
                case _:
                    pass

    def leave_rollout(self, rollout_s: float) -> None:
        """A swap begins after so long a rollout."""
        self._rollout_s = rollout_s

    # What policies ask

    def predict_swap(self) -> SwapCost:
        """Of a swap that begins now and moves what the last one moved."""
        phase_s = {}
        for phase, line in self._phases.items():
            estimate = line.predict(self._bytes.get(phase, 0.0))
            phase_s[phase] = estimate if len(line) else Estimate(0.0, math.inf)
        return SwapCost(
            phase_s=phase_s,
            reprefill_s=self.workload.decode.prefill_s(self.workload.num_parked_context),
        )

    def training_s(self, num_tokens: float) -> Estimate:
        """Seconds of one training step on so many tokens."""
        return self._training.predict(num_tokens)

    def useful_tokens(self, time_s: float) -> float:
        """Generated in this cycle so far, in flight included, and not discarded."""
        workload = self.workload
        generated = workload.num_generated - self._generated_before
        discarded = workload.num_discarded - self._discarded_before
        return generated - discarded + workload.inflight_tokens(time_s)

    def cycle_rate(self, rollout_s: float, time_s: float, swap: SwapCost) -> float:
        """Useful tokens a second of rollout and swap, over past cycles and this one ended now.

        The time that a cycle spent on reading parked contexts again is charged to the swap that
        parked them: taken off this rollout, where it was spent, and put on the swap to come.
        """
        spent_s = rollout_s - self._reread_s() + swap.total_s.value
        tokens = self._tokens + max(0.0, self.useful_tokens(time_s))
        return tokens / max(1e-9, self._seconds + max(0.0, spent_s))

    def place_tokens(self, rollout_s: float) -> float:
        """What one trajectory more in the rollout to come would bring, in tokens.

        It adds to the engine's rate what one request more adds to it, for as much of the time as
        the residents of past rollouts have decoded, on average. How long that rollout will be is
        taken from past ones and the present one.

        Args:
            rollout_s: How long the present rollout would be if it ended now.
        """
        if not self._resident_s or not self._rollouts_s:
            return 0.0
        concurrency = max(1.0, self._decoding_s / self._rollouts_s)
        decodes = self._decoding_s / self._resident_s
        to_come_s = (self._rollouts_s + rollout_s) / (self._num_rollouts + 1)
        brings = self.workload.decode.marginal_rate(concurrency) * decodes * to_come_s
        return min(brings, self._mean_tokens())

    def place_share(self, rollout_s: float) -> float:
        """``place_tokens`` as a share of a whole trajectory's tokens, at most 1.

        Near 1 the engine has room, and what limits the run is how many trajectories are admitted;
        near 0 the engine is saturated, and it is of no use to admit more.
        """
        mean = self._mean_tokens()
        return self.place_tokens(rollout_s) / mean if mean else 0.0

    def _mean_tokens(self) -> float:
        """Of a trajectory that was trained."""
        return self.workload.num_trained_tokens / max(1, self.workload.num_trained)

    def prediction_of(self) -> float | None:
        """Seconds that the phases of the swap to come are predicted to take; None before one."""
        return round(self.predict_swap().moves_s.value, 6) if self.num_cycles else None

    # Across a restart

    def snapshot(self) -> dict[str, Any]:
        """Plain data: lists, dictionaries, numbers."""
        return {
            "schema": SCHEMA,
            "num_cycles": self.num_cycles,
            "tokens": self._tokens,
            "seconds": self._seconds,
            "rollouts_s": self._rollouts_s,
            "num_rollouts": self._num_rollouts,
            "decoding_s": self._decoding_s,
            "resident_s": self._resident_s,
            "phases": {str(phase): line.snapshot() for phase, line in self._phases.items()},
            "bytes": {str(phase): size for phase, size in self._bytes.items()},
            "parts": {str(part): size for part, size in self._parts.items()},
            "training": self._training.snapshot(),
            "workload": self.workload.snapshot(),
        }

    def restore(self, data: Mapping[str, Any]) -> None:
        """Takes up what another run's model had learned; for a model that has seen nothing yet.

        Raises:
            ValueError: where the data is of another schema, or no snapshot; nothing was changed.
        """
        if data.get("schema") != SCHEMA:
            raise ValueError(f"a cost model of schema {data.get('schema')}, not {SCHEMA}")
        whole = CostModel()
        try:
            whole._read(data)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ValueError(f"no snapshot of a cost model: {error!r}") from error
        vars(self).update(vars(whole))

    def take_up(self, buffer: BufferSnapshot, time_s: float) -> None:
        """After a rollback: what was learned stays; these are the trajectories that are there."""
        self.restore(self.snapshot())
        self.workload.learn(Restored(time_s=time_s, buffer=buffer))

    # Inside

    def _read(self, data: Mapping[str, Any]) -> None:
        self.num_cycles = int(data["num_cycles"])
        self._tokens, self._seconds = float(data["tokens"]), float(data["seconds"])
        self._rollouts_s = float(data["rollouts_s"])
        self._num_rollouts = float(data["num_rollouts"])
        self._decoding_s, self._resident_s = float(data["decoding_s"]), float(data["resident_s"])
        for phase, points in data["phases"].items():
            self._phases[Phase(phase)].restore(points)
        self._bytes = {Phase(phase): float(size) for phase, size in data["bytes"].items()}
        self._parts = {Part(part): int(size) for part, size in data["parts"].items()}
        self._training.restore(data["training"])
        self.workload.restore(data["workload"])

    def _reread_s(self) -> float:
        num_reread = self.workload.num_reread - self._reread_before
        estimate = self.workload.decode.prefill_s(num_reread)
        return estimate.value if math.isfinite(estimate.error) else 0.0

    def _size(self, parts: frozenset[Part]) -> float:
        return float(sum(self._parts.get(part, 0) for part in parts))

    def _plan(self, plan: AdoptPlan) -> None:
        """Bytes that each phase of this swap moves."""
        asleep = EVICTED[plan.mode]
        offload, after = frozenset(plan.offload), frozenset(plan.offload_after_push)
        weights = frozenset({Part.WEIGHTS})
        self._bytes = {
            Phase.PARKING: 0.0,
            Phase.SLEEPING: self._size(asleep),
            Phase.TRAINER_WAKING: self._size(self._evicted),
            Phase.TRAINER_OFFLOADING: self._size(offload),
            Phase.WEIGHTS_WAKING: self._size(asleep & weights),
            Phase.PUBLISHING: self._size(weights | after),
            Phase.KV_WAKING: self._size(asleep - weights),
        }
        self._evicted = offload | after

    def _close(self, action: CloseSwap) -> None:
        moves_s = 0.0
        for phase, line in self._phases.items():
            took_s = action.phase_s.get(phase, 0.0)
            line.observe(self._bytes.get(phase, 0.0), took_s)
            moves_s += took_s
        workload = self.workload
        if self._rollout_s is not None:
            self.num_cycles += 1
        # The first rollout begins with everybody at work, as no other does: what it brings no
        # later one can bring, so that it is no part of the average.
        if self._rollout_s is not None and not self._is_first:
            kept = 1 - 1 / MEMORY_CYCLES if self.num_cycles >= MIN_CYCLES else 1.0
            tokens = workload.num_generated - self._generated_before
            tokens -= workload.num_discarded - self._discarded_before
            reread_s = workload.decode.prefill_s(workload.num_parked_context)
            again_s = reread_s.value if math.isfinite(reread_s.error) else 0.0
            spent_s = max(0.0, self._rollout_s - self._reread_s()) + moves_s + again_s
            self._tokens = kept * self._tokens + tokens
            self._seconds = kept * self._seconds + spent_s
            self._rollouts_s = kept * self._rollouts_s + self._rollout_s
            self._num_rollouts = kept * self._num_rollouts + 1
            decoding_s = workload.decoding_s - self._decoding_before_s
            self._decoding_s = kept * self._decoding_s + decoding_s
            self._resident_s = kept * self._resident_s + self._num_begun * self._rollout_s
        self._rollout_s = None
        self._generated_before = workload.num_generated
        self._discarded_before = workload.num_discarded
        self._reread_before = workload.num_reread
        self._decoding_before_s = workload.decoding_s
        self._num_begun = workload.num_unfinished
        self._is_first = False
        workload.decode.refresh()
