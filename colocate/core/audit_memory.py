"""The part of the audit that watches who is on the device, from events and actions alone."""

from __future__ import annotations

from collections.abc import Iterator

from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.memory import EVICTED
from colocate.core.phases import Phase
from colocate.core.types import TRAINER_PARTS, Part, SleepMode


class MemoryAuditor:
    """Engine and trainer together on the device: only as the plan of the swap allows it."""

    def __init__(self) -> None:
        self._plan: act.AdoptPlan | None = None
        self._engine_without: frozenset[Part] = frozenset()
        self._trainer_without: frozenset[Part] = TRAINER_PARTS
        self._leaving: frozenset[Part] = frozenset()

    def see_event(self, event: ev.Event) -> None:
        match event:
            case ev.PhaseEnded(phase=Phase.STARTING):
                self._trainer_without = TRAINER_PARTS
                self._engine_without = self._leaving = frozenset()
            case ev.PhaseEnded(phase=Phase.TRAINER_WAKING):
                self._trainer_without = frozenset()
            case ev.PhaseEnded(phase=Phase.TRAINER_OFFLOADING | Phase.PUBLISHING) | ev.Relieved():
                self._trainer_without |= self._leaving
                self._leaving = frozenset()
            case ev.PhaseEnded(phase=Phase.WEIGHTS_WAKING):
                self._engine_without -= {Part.WEIGHTS}
            case ev.PhaseEnded(phase=Phase.KV_WAKING):
                self._engine_without = frozenset()
            case _:
                pass

    def check_action(self, action: act.Action) -> Iterator[str]:
        """Yields what is wrong with doing this now."""
        match action:
            case act.AdoptPlan():
                self._plan = action
            case act.Sleep(mode=mode):
                self._engine_without |= EVICTED[mode]
            case act.Relieve(mode=mode, parts=parts):
                self._engine_without |= EVICTED[mode or SleepMode.PAUSE]
                self._leaving = frozenset(parts)
            case act.OffloadTrainer(parts=parts) | act.Publish(offload=parts):
                self._leaving = frozenset(parts)
            case act.StartEngine(offload=parts):
                self._leaving = frozenset(parts)
                staying = TRAINER_PARTS - self._trainer_without - self._leaving
                if staying:
                    yield f"an engine starts while {sorted(staying)} of the trainer are there"
            case act.RollBack():
                self._plan = None
            case act.LoadTrainer() | act.Train():
                yield from self._check_trainer_comes()
            case act.WakeKv():
                yield from self._check_engine_comes()
            case _:
                pass

    def _check_trainer_comes(self) -> Iterator[str]:
        plan = self._plan
        if plan is None:
            yield "the trainer comes to the device, and no plan says that it fits"
            return
        staying = EVICTED[plan.mode] - self._engine_without
        if staying:
            yield f"the trainer comes while {sorted(staying)} of the engine are on the device"
        if plan.training_bytes is None or plan.total_bytes is None or self._engine_without:
            return
        if plan.training_bytes > plan.total_bytes:
            yield "the trainer comes beside an awake engine, and the plan says it does not fit"

    def _check_engine_comes(self) -> Iterator[str]:
        if self._plan is None:
            return  # a resume: the trainer has been offloaded before the engine was started
        wanted = {*self._plan.offload, *self._plan.offload_after_push}
        staying = wanted - self._trainer_without
        if staying:
            yield f"the engine is woken while {sorted(staying)} of the trainer are on the device"
