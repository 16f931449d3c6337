"""How much of the environments' time that could pass during swaps did, from a run's journal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from colocate.adapters.environments.latency import LatencyModel
from colocate.core.actions import Park, StartTrajectory
from colocate.core.events import PhaseEnded, TrajectoryFinished, TrajectoryLost, TurnReady
from colocate.core.phases import Phase
from colocate.core.types import GroupId, TrajectoryId
from colocate.journal import Entry
from colocate.rollout.runner import derive_seed


@dataclass(frozen=True, slots=True)
class Wait:
    """Of an environment step: its beginning, its end by its latency, and the answer."""

    began_s: float
    due_s: float
    answered_s: float

    def in_swap(self, parked_s: float, awake_s: float) -> tuple[float, float]:
        """Seconds of a swap that could hide the wait, and those that did.

        The first is the smaller of the latency left and of the time until KV_WAKING ends. Of it is
        lost by how much longer than necessary the trajectory waits after that: an answer that was
        held up, by a driver that was busy with the swap, say, hid nothing by being held up.
        """
        could_s = max(0.0, min(self.due_s, awake_s) - max(self.began_s, parked_s))
        lost_s = max(0.0, self.answered_s - awake_s) - max(0.0, self.due_s - awake_s)
        return could_s, min(could_s, max(0.0, could_s - lost_s))


@dataclass(slots=True)
class _Steps:
    """Environment steps of one seeded run, with what their latency model said they take."""

    latency: LatencyModel
    run_seed: int
    _groups: dict[TrajectoryId, tuple[GroupId, int]] = field(default_factory=dict)
    _answers: Counter[TrajectoryId] = field(default_factory=Counter)

    def read(self, entries: Iterable[Entry]) -> Iterator[Wait | tuple[float, float]]:
        """Waits, and swaps as (parked, awake), as the journal has them."""
        parked_s: float | None = None
        for entry in entries:
            event = entry.event
            if isinstance(event, TurnReady | TrajectoryFinished | TrajectoryLost):
                wait = self._wait(event)
                if wait is not None:
                    yield wait
            if isinstance(event, PhaseEnded) and event.phase is Phase.KV_WAKING:
                if parked_s is not None:
                    yield parked_s, event.time_s
                parked_s = None
            for action in entry.actions:
                if isinstance(action, StartTrajectory):
                    self._groups[action.trajectory] = (action.group, action.attempt)
                    del self._answers[action.trajectory]
                elif isinstance(action, Park):
                    parked_s = event.time_s

    def _wait(self, event: TurnReady | TrajectoryFinished | TrajectoryLost) -> Wait | None:
        """None of a reset, which the latency model leaves alone, and of an attempt given up."""
        started = self._groups.get(event.trajectory)
        if started is None or event.attempt != started[1]:
            return None
        num_answers = self._answers[event.trajectory]
        self._answers[event.trajectory] += 1
        if num_answers == 0:
            return None
        group, attempt = started
        seed = derive_seed(self.run_seed, group, event.trajectory, attempt, "environment")
        # An episode that ran out of turns or tokens ends without a step.
        takes_s = min(event.busy_s, self.latency.delay_s(seed, num_answers - 1))
        began_s = event.time_s - event.busy_s
        return Wait(began_s, began_s + takes_s, event.time_s)


def hidden_share(entries: Iterable[Entry], latency: LatencyModel, run_seed: int) -> float | None:
    """Of what could pass between PARKING's beginning and KV_WAKING's end; None where nothing could.

    Args:
        latency: As the run's environments had it; its own work aside, a step takes just that.
        run_seed: The run's ``seed``.
    """
    waits: list[Wait] = []
    swaps: list[tuple[float, float]] = []
    for found in _Steps(latency, run_seed).read(entries):
        waits.append(found) if isinstance(found, Wait) else swaps.append(found)
    could_s = did_s = 0.0
    for wait in waits:
        for parked_s, awake_s in swaps:
            if parked_s < wait.due_s and wait.began_s < awake_s:
                each_could_s, each_did_s = wait.in_swap(parked_s, awake_s)
                could_s += each_could_s
                did_s += each_did_s
    return did_s / could_s if could_s else None
