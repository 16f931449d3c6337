"""Who is on the device: what a swap evicts, whether it has left, and what is tried if it has not.

The scheduler moves between phases; this object knows what each phase must have achieved in memory
before it may be left. It owns the ledger, the plan of the present swap and the ladder.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from colocate.core.actions import (
    Action,
    AdoptPlan,
    OffloadTrainer,
    Relieve,
    SampleMemory,
    Sleep,
    Warn,
)
from colocate.core.events import PhaseEnded, Relieved
from colocate.core.eviction import EVERYTHING, Planner, next_deeper
from colocate.core.memory import EVICTED, TRAINER, MemoryLedger
from colocate.core.phases import Phase
from colocate.core.remedies import Ladder, Remedy
from colocate.core.residual import ResidualWatch
from colocate.core.settings import Settings
from colocate.core.trajectory import ProtocolError
from colocate.core.types import (
    ENGINE_PARTS,
    TRAINER_PARTS,
    MemorySample,
    Part,
    SleepMode,
    Version,
)

REPORTED_SHARE = 0.99
"""Of what was on the device before, for a part that is reported to be back."""

_ENGINE_PHASES = (Phase.SLEEPING, Phase.WEIGHTS_WAKING, Phase.KV_WAKING)


def ordered(parts: Collection[Part]) -> tuple[Part, ...]:
    """In the order of their declaration, as actions and journal have them."""
    return tuple(part for part in Part if part in parts)


class Residency:
    """Attributes:
    mode: What the engine has given up at present.
    evicted: Parts of the trainer that are off the device, as a phase that ended has shown.
    plan: Of the present swap, or of the last one.
    """

    def __init__(self, settings: Settings) -> None:
        self.ledger = MemoryLedger(margin_bytes=settings.margin_bytes)
        self.mode = SleepMode.PAUSE
        self.evicted: frozenset[Part] = frozenset()
        self.plan = EVERYTHING
        fixed = None if settings.sleep == "auto" else SleepMode(settings.sleep)
        self._bucket_bytes = settings.bucket_bytes
        self._planner = Planner(self.ledger, mode=fixed, bucket_bytes=settings.bucket_bytes)
        self._ladder = Ladder(every_s=settings.remedy_after_s)
        self._watch = ResidualWatch()
        self._entered_s = 0.0
        self._took_s: dict[Phase, float] = {}
        self._offload_s: float | None = None
        self._offloaded: frozenset[Part] = frozenset()

    # The plan, and the actions it asks for

    def adopt_plan(self) -> AdoptPlan:
        """Plans the swap that begins, on what was measured when the engine was parked."""
        self.plan = self._planner.plan(self.ledger.awake)
        self._took_s.clear()
        plan = self.plan
        return AdoptPlan(
            mode=plan.mode,
            offload=ordered(plan.offload),
            offload_after_push=ordered(plan.offload_after_push),
            training_bytes=plan.training_bytes,
            rollout_bytes=plan.rollout_bytes,
            total_bytes=plan.total_bytes,
        )

    def sleep(self, time_s: float) -> Action | None:
        """None where a pause is enough, as measured; where it is not, the ladder decides."""
        if self.plan.mode is not SleepMode.PAUSE:
            return Sleep(mode=self.plan.mode)
        fits = self.is_achieved(Phase.SLEEPING, self.ledger.awake)
        return None if fits else SampleMemory(at_s=time_s)

    def offload(self, version: Version, *, checkpoint: bool, expect: bool) -> OffloadTrainer | None:
        """None where nothing would be done, and nothing is about to need the memory."""
        parts = ordered(self.plan.offload)
        if self.mode is SleepMode.PAUSE and not parts and not checkpoint and not expect:
            return None
        self._offload_s = None if checkpoint or expect else 0.0
        self._offloaded = self.plan.evicted
        return OffloadTrainer(parts=parts, checkpoint=checkpoint, version=version, expect=expect)

    def check_exclusion(self) -> None:
        """Before the engine serves again: what the plan wants gone of the trainer is gone.

        Raises:
            ProtocolError: engine and trainer would be on the device together, and nobody has said
                that they fit.
        """
        staying = self.plan.evicted - self.evicted
        if staying:
            raise ProtocolError(
                f"the engine cannot be woken: {', '.join(ordered(staying))} of the trainer are on "
                "the device, and the plan wants them gone"
            )

    @property
    def weights_are_asleep(self) -> bool:
        return Part.WEIGHTS in EVICTED[self.mode]

    # What is lost

    def lose_engine(self) -> tuple[Part, ...]:
        """A new engine is to be started: returns what must leave before of the trainer.

        An engine takes all of its memory when it starts, whatever the plan had let stay beside it.
        One that is lost as it starts leaves open what has left: all of it is asked for once more.
        """
        staying = ordered(TRAINER_PARTS - self.evicted)
        self.ledger.forget(ENGINE_PARTS)
        self.mode = SleepMode.PAUSE
        self._offload_s = None
        return staying

    def lose_everything(self) -> None:
        """Trainer and engine are to be started anew, one after the other, as in the beginning."""
        self.lose_engine()
        self.ledger.forget(TRAINER_PARTS)
        self.evicted = frozenset()
        self.plan = EVERYTHING

    # What comes in

    def enter(self, phase: Phase, time_s: float) -> None:
        self._entered_s = time_s
        self._ladder.enter(phase, time_s)
        if phase is Phase.SLEEPING:
            self.mode = self.plan.mode

    def phase_ended(self, event: PhaseEnded) -> str | None:
        """Takes in what a phase's action left; returns what it contradicts, if anything."""
        before = dict(self.ledger.resident)
        self.ledger.observe(event.peak, event.memory)
        self.ledger.report(event.held)
        self._ladder.wait_from(event.time_s)
        match event.phase:
            case Phase.STARTING:
                self.evicted = TRAINER_PARTS
                self.ledger.find_base(event.memory)
                self.ledger.trainer_rested(self.evicted, event.memory)
                self.ledger.engine_woke(event.memory)
            case Phase.PARKING:
                self.ledger.engine_is_awake(event.memory)
            case Phase.TRAINER_WAKING:
                self.evicted = frozenset()
                self.ledger.trainer_woke(event.memory)
                return _not_back(TRAINER_PARTS, before, event)
            case Phase.TRAINER_OFFLOADING:
                self.evicted |= self.plan.offload
            case Phase.PUBLISHING:
                self.evicted |= self.plan.offload_after_push
                return _not_back({Part.WEIGHTS}, before, event)
            case Phase.KV_WAKING:
                return _not_back({Part.KV_CACHE}, before, event)
            case _:
                pass
        return None

    def relieved(self, event: Relieved) -> None:
        self.ledger.observe(event.memory)
        self.ledger.report(event.held)
        self._ladder.wait_from(event.time_s)

    def trained(self, peak: MemorySample | None, memory: MemorySample | None) -> None:
        self.ledger.trained(peak, memory)

    # Whether a phase has achieved what it is for

    def is_achieved(self, phase: Phase, memory: MemorySample | None) -> bool:
        if memory is None:
            return True
        paused = self.mode is SleepMode.PAUSE
        if phase is Phase.SLEEPING:
            left = paused or self.ledger.has_released(self.mode, memory)
            return left and self._wanted(phase, memory) <= memory.free
        return paused or self._wanted(phase, memory) <= memory.free

    def _wanted(self, phase: Phase, memory: MemorySample) -> int:
        """Bytes that must be free before the next tenant comes, the margin included."""
        ledger = self.ledger
        match phase:
            case Phase.SLEEPING:
                return ledger.wanted_by_trainer(memory)
            case Phase.TRAINER_OFFLOADING if self.plan.offload_after_push:
                return ledger.wanted_by_engine({Part.WEIGHTS}, None) + self._bucket_bytes
            case Phase.TRAINER_OFFLOADING | Phase.PUBLISHING:
                return ledger.wanted_by_engine(ENGINE_PARTS, memory)
            case _:
                return 0

    def host_overdraft(self, phase: Phase, memory: MemorySample | None) -> str | None:
        """What to say where the host has no room left for what was moved to it."""
        moves = phase in (Phase.STARTING, Phase.SLEEPING, Phase.TRAINER_OFFLOADING)
        if not moves or memory is None or memory.host_free is None or memory.host_free > 0:
            return None
        used = (memory.host_used or 0) >> 20
        return (
            f"host memory is used up after {phase}: the run's processes hold {used} MiB of it; "
            "raise memory.host_budget_bytes if it is set, keep fewer weights in RAM "
            "(inference.sleep=2), or run fewer ranks and engines. "
            f"Memory: {self.ledger.describe()}"
        )

    # The ladder

    def remedy(self, phase: Phase, time_s: float) -> Action | None:
        """What to try now, where it is time to try something."""
        while remedy := self._ladder.climb(time_s):
            match remedy:
                case Remedy.COLLECT:
                    return Relieve(remedy=remedy)
                case Remedy.SLEEP_DEEPER if deeper := next_deeper(self.mode):
                    self.mode = deeper
                    return Relieve(remedy=remedy, mode=deeper)
                case Remedy.OFFLOAD_ALL if TRAINER_PARTS - self.evicted:
                    parts = ordered(TRAINER_PARTS - self.evicted)
                    self.evicted = TRAINER_PARTS
                    self.plan = replace(
                        self.plan, offload=TRAINER_PARTS, offload_after_push=frozenset()
                    )
                    return Relieve(remedy=remedy, parts=parts)
                case _:
                    continue
        return None

    # What is learned when a phase is left

    def leave(self, phase: Phase, memory: MemorySample | None, time_s: float) -> list[Warn]:
        """The phase has achieved what it is for; returns what there is to warn of."""
        took_s = time_s - self._entered_s
        self._took_s[phase] = took_s
        ledger = self.ledger
        match phase:
            case Phase.SLEEPING if self.mode is not SleepMode.PAUSE:
                ledger.engine_slept(self.mode, memory)
                return self._watch_residual(f"the engine asleep ({self.mode})", memory)
            case Phase.TRAINER_WAKING if self._offload_s is not None:
                # The plan that was carried out then; the present swap has one of its own.
                self._planner.learn(self._offloaded, self._offload_s + took_s)
                self._offload_s = None
            case Phase.TRAINER_OFFLOADING if self.plan.offload:
                if self._offload_s is not None:
                    self._offload_s += took_s
                ledger.trainer_rested(self.evicted, memory)
                return self._watch_residual("the trainer offloaded", memory)
            case Phase.PUBLISHING if self.plan.offload_after_push:
                ledger.trainer_rested(self.evicted, memory)
            case Phase.KV_WAKING:
                self._engine_is_back(memory)
            case _:
                pass
        return []

    def _engine_is_back(self, memory: MemorySample | None) -> None:
        if self.mode is self.plan.mode and self.mode is not SleepMode.PAUSE:
            seconds = sum(self._took_s.get(phase, 0.0) for phase in _ENGINE_PHASES)
            self._planner.learn(self.mode, seconds)
        self.mode = SleepMode.PAUSE
        self.ledger.engine_woke(memory)

    def _watch_residual(self, name: str, memory: MemorySample | None) -> list[Warn]:
        if memory is None:
            return []
        warnings = [
            self._watch.observe(
                name,
                memory.tenants.get(TRAINER if "trainer" in name else "engine", memory.used),
                memory.total - (self.ledger.peak_used or memory.used),
            )
        ]
        if memory.host_used is not None and memory.host_free is not None:
            host = "all processes of the run (host memory)"
            warnings.append(self._watch.observe(host, memory.host_used, memory.host_free))
        return [Warn(message=text) for text in warnings if text]

    # For people

    def explain_wait(self, phase: Phase) -> str:
        """What a phase that missed its deadline was waiting for; empty where it is not memory."""
        memory = self.ledger.last
        if memory is None or self.is_achieved(phase, memory):
            return ""
        tried = ", ".join(self._ladder.tried) or "nothing"
        wanted = self._wanted(phase, memory) >> 20
        if phase is Phase.SLEEPING and not self.ledger.has_released(self.mode, memory):
            waits = f"the engine to give up {', '.join(ordered(EVICTED[self.mode]))}"
        elif phase is Phase.SLEEPING:
            waits = (
                f"{wanted} MiB free, so that the trainer can train: lower "
                "trainer.micro_batch_tokens, or raise memory.budget_bytes if it is set"
            )
        else:
            waits = (
                f"{wanted} MiB free, so that the engine can wake: lower "
                "inference.kv_cache_memory_bytes, or raise memory.budget_bytes if it is set"
            )
        return f" It waits for {waits}; tried: {tried}."


def _not_back(parts: Collection[Part], before: dict[Part, int], event: PhaseEnded) -> str | None:
    """A part that is reported to hold much less than when it was last on the device."""
    for part in ordered(parts):
        if event.held is None or part not in event.held or part is Part.GRADIENTS:
            continue  # gradients are made anew by the next backward pass
        if event.held[part] < REPORTED_SHARE * before.get(part, 0):
            return (
                f"{event.phase} has ended, but only {event.held[part]} of {before[part]} bytes of "
                f"the {part} are back"
            )
    return None
