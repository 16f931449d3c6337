"""The memory ledger: what each tenant was measured to hold, and what it will hold.

Bytes throughout. What is not known is None, and decides nothing. Two kinds of numbers come in:
*samples* are what the device says (NVML, or the kernel), and decide whether a phase has ended;
*holdings* are what engine and trainer report of their own tensors, by ``Part``, and tell what an
eviction would bring. Where the two disagree, the sample is believed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from colocate.core.types import ENGINE_PARTS, TRAINER_PARTS, MemorySample, Part, SleepMode

ENGINE = "engine"
TRAINER = "trainer"

RELEASED_SHARE = 0.9
"""Of what an eviction is reported to release: so much must be seen to leave the device."""

EVICTED: Mapping[SleepMode, frozenset[Part]] = {
    SleepMode.PAUSE: frozenset(),
    SleepMode.KV: frozenset({Part.KV_CACHE}),
    SleepMode.LEVEL_1: ENGINE_PARTS,
    SleepMode.LEVEL_2: ENGINE_PARTS,
}


@dataclass(slots=True)
class MemoryLedger:
    """What was measured of each tenant, in the states that matter to a swap.

    Attributes:
        margin_bytes: Kept free of every plan.
        awake: When PARKING ended: the engine at its largest.
        woken: When KV_WAKING ended: what a wake brings back.
        asleep: When SLEEPING ended.
        resident: Bytes of each part when it is on the device, as reported.
        held: Bytes of each part on the device now, as last reported.
        engine_in: What the engine's processes held, at rest, in each mode.
        trainer_without: What the trainer's held, at rest, without these parts.
        released_bytes: By how much the engine's memory fell in the last sleep, as measured.
        base_bytes: What was used beyond all parts: runtimes, and strangers.
        working_bytes: What the last rollout added to it; the engine keeps it until it sleeps.
        trainer_peak: The most that the trainer's processes were seen to hold while training.
        num_peaks: Training steps that it was seen in.
    """

    margin_bytes: int = 0
    awake: MemorySample | None = None
    woken: MemorySample | None = None
    asleep: MemorySample | None = None
    last: MemorySample | None = None
    peak_used: int = 0
    released_bytes: int = 0
    base_bytes: int = 0
    working_bytes: int = 0
    resident: dict[Part, int] = field(default_factory=dict)
    held: dict[Part, int] = field(default_factory=dict)
    engine_in: dict[SleepMode, int] = field(default_factory=dict)
    trainer_without: dict[frozenset[Part], int] = field(default_factory=dict)
    trainer_loaded: int | None = None
    trainer_peak: int | None = None
    num_peaks: int = 0

    # Coming in

    def observe(self, *samples: MemorySample | None) -> None:
        for sample in samples:
            if sample is not None:
                self.last = sample
                self.peak_used = max(self.peak_used, sample.used)

    def engine_is_awake(self, sample: MemorySample | None) -> None:
        """At the end of PARKING, after ``report``.

        This, and not what a wake brings back, is what a mere pause leaves on the device: a rollout
        lies between them, whose working memory the engine keeps.
        """
        self.awake = sample or self.awake
        if sample is not None:
            self.working_bytes = max(0, self._beyond_parts(sample) - self.base_bytes)
            self.engine_in[SleepMode.PAUSE] = self.engine_bytes(sample)

    def find_base(self, sample: MemorySample | None) -> None:
        """While nobody has computed, what is used beyond all parts is there whatever is evicted."""
        if sample is not None:
            self.base_bytes, self.working_bytes = self._beyond_parts(sample), 0

    def _beyond_parts(self, sample: MemorySample) -> int:
        return max(0, sample.used - sum(self.held.values()))

    def report(self, held: Mapping[Part, int] | None) -> None:
        """Takes in what engine or trainer report of their parts."""
        for part, num_bytes in (held or {}).items():
            self.held[part] = num_bytes
            if num_bytes:
                # The most: what stays behind of a part that left is no measure of it.
                self.resident[part] = max(num_bytes, self.resident.get(part, 0))

    def forget(self, parts: Collection[Part]) -> None:
        """Their process is gone. What takes its place may hold less: an optimizer, for example,
        that has taken no step yet."""
        for part in parts:
            self.resident.pop(part, None)
            self.held.pop(part, None)

    def engine_slept(self, mode: SleepMode, sample: MemorySample | None) -> None:
        self.asleep = sample or self.asleep
        if sample is not None:
            before, now = self._engine_before_and_now(sample)
            self.released_bytes = before - now
            self.find_base(sample)
            self.engine_in[mode] = self.engine_bytes(sample)

    def engine_woke(self, sample: MemorySample | None) -> None:
        self.woken = sample or self.woken

    def trainer_rested(self, without: frozenset[Part], sample: MemorySample | None) -> None:
        if sample is not None:
            self.trainer_without[without] = self.trainer_bytes(sample)

    def trainer_woke(self, sample: MemorySample | None) -> None:
        if sample is not None:
            self.trainer_loaded = self.trainer_bytes(sample)

    def trained(self, peak: MemorySample | None, sample: MemorySample | None) -> None:
        self.observe(peak, sample)
        seen = [self.trainer_bytes(each) for each in (peak, sample) if each is not None]
        if seen:
            self.trainer_peak = max([*seen, self.trainer_peak or 0])
            self.num_peaks += 1
        if sample is not None:
            self.trainer_without[frozenset()] = self.trainer_bytes(sample)

    # Who holds what

    def engine_bytes(self, sample: MemorySample) -> int:
        """What the engine's processes hold; where the probe cannot tell, its parts and what it
        keeps of a rollout."""
        if ENGINE in sample.tenants:
            return sample.tenants[ENGINE]
        return self._sum(ENGINE_PARTS, self.held) + self.working_bytes

    def trainer_bytes(self, sample: MemorySample) -> int:
        """Likewise; where the probe cannot tell, all that is neither the engine's nor a stranger's.

        What a stranger takes meanwhile can then not be told from the trainer's activations.
        """
        if TRAINER in sample.tenants:
            return sample.tenants[TRAINER]
        parts = self._sum(TRAINER_PARTS, self.held)
        return max(parts, sample.used - self.engine_bytes(sample) - self.base_bytes)

    def stranger_bytes(self, sample: MemorySample) -> int:
        """What neither tenant holds: other people's processes, and the driver's own overhead."""
        mine = self.engine_bytes(sample) + self.trainer_bytes(sample)
        return max(0, sample.used - mine)

    @staticmethod
    def _sum(parts: Iterable[Part], sizes: Mapping[Part, int]) -> int:
        return sum(sizes.get(part, 0) for part in parts)

    # What will be held

    def engine_will_hold(self, mode: SleepMode) -> int | None:
        """By the engine in this mode: as last measured in it, else by what it would evict."""
        if mode in self.engine_in:
            return self.engine_in[mode]
        awake = self.engine_in.get(SleepMode.PAUSE)
        if awake is None and self.awake is not None:
            awake = self.engine_bytes(self.awake)
        return None if awake is None else max(0, awake - self._sum(EVICTED[mode], self.resident))

    def trainer_will_hold(self, without: frozenset[Part]) -> int | None:
        """By the trainer at rest without these parts: as last measured, else by its parts."""
        if without in self.trainer_without:
            return self.trainer_without[without]
        if self.trainer_loaded is None:
            return None
        # It is loaded for the first time without the moments that the first step makes.
        everything = max(self.trainer_loaded, self.trainer_without.get(frozenset(), 0))
        leaves = self._sum(without, self.resident) * self.evictable_share
        return max(0, everything - round(leaves))

    @property
    def evictable_share(self) -> float:
        """How much of the trainer's parts an offload was seen to take off the device.

        Where the host is the device, nothing can leave it, whatever the call reports.
        """
        everything = self.trainer_without.get(TRAINER_PARTS)
        parts = self._sum(TRAINER_PARTS, self.resident)
        if everything is None or self.trainer_loaded is None or not parts:
            return 1.0
        return min(1.0, max(0.0, (self.trainer_loaded - everything) / parts))

    # Whether it is so, and whether it fits

    def has_released(self, mode: SleepMode, sample: MemorySample | None) -> bool:
        """Whether what the engine gives up in this mode has really left the device, as measured."""
        if sample is None or self.awake is None:
            return True
        before, now = self._engine_before_and_now(sample)
        # Level 1 keeps the weights on the host, which may be the device: there the report is all
        # that tells. What must leave is not taken from the report, which may say that nothing has.
        must = EVICTED[mode] if mode is SleepMode.LEVEL_2 else EVICTED[mode] & {Part.KV_CACHE}
        expected = self._sum(must, self.resident) + self._missing(EVICTED[mode] - must)
        return before - now >= RELEASED_SHARE * expected

    def _engine_before_and_now(self, sample: MemorySample) -> tuple[int, int]:
        """As measured: of its processes where the probe can tell, else of the whole device."""
        assert self.awake is not None
        if ENGINE in sample.tenants and ENGINE in self.awake.tenants:
            return self.awake.tenants[ENGINE], sample.tenants[ENGINE]
        return self.awake.used, sample.used

    def wanted_by_engine(self, parts: Collection[Part], sample: MemorySample | None) -> int:
        """What waking these parts takes beyond what is held, and the margin.

        Args:
            sample: Where the engine will then be wholly awake: what its processes hold beside
                their parts comes back too.
        """
        missing = self._missing(parts)
        awake = self.woken or self.awake
        if sample is not None and awake is not None:
            missing = max(missing, self.engine_bytes(awake) - self.engine_bytes(sample))
        return missing + self.margin_bytes

    def wanted_by_trainer(self, sample: MemorySample) -> int:
        """What loading and training take beyond what is held, and the margin."""
        now = self.trainer_bytes(sample)
        if self.trainer_peak is not None:
            return max(0, self.trainer_peak - now) + self.margin_bytes
        return self._missing(TRAINER_PARTS) + self.margin_bytes

    def _missing(self, parts: Collection[Part]) -> int:
        """What these parts held when they were on the device, and do not now."""
        return sum(max(0, self.resident.get(p, 0) - self.held.get(p, 0)) for p in parts)

    def overdraft(self, sample: MemorySample | None) -> int:
        """Bytes that are held beyond what there is; a budget can be overdrawn, a device cannot."""
        return 0 if sample is None else max(0, sample.used - sample.total)

    # For people

    def describe(self) -> str:
        """The ledger as one line for an error message."""

        def show(name: str, sample: MemorySample | None) -> str:
            if sample is None:
                return f"{name}: not measured"
            tenants = ", ".join(f"{k} {v >> 20} MiB" for k, v in sorted(sample.tenants.items()))
            return f"{name}: {sample.used >> 20} of {sample.total >> 20} MiB ({tenants})"

        return "; ".join(
            (show("engine awake", self.awake), show("asleep", self.asleep), show("now", self.last))
        )

    def table(self) -> dict[str, Any]:
        """The ledger as ``summary.json`` keeps it and the end of a failed run prints it."""
        now = self.last
        return {
            "now": None
            if now is None
            else {
                "used": now.used,
                "total": now.total,
                "margin": self.margin_bytes,
                **dict(sorted(now.tenants.items())),
                "strangers": self.stranger_bytes(now),
                "host_used": now.host_used,
                "host_free": now.host_free,
            },
            "parts": {
                str(part): {"resident": self.resident[part], "now": self.held.get(part, 0)}
                for part in Part
                if part in self.resident
            },
            "engine": {str(mode): num_bytes for mode, num_bytes in self.engine_in.items()},
            "trainer": {
                "loaded": self.trainer_loaded,
                "peak": self.trainer_peak,
                "without": {
                    "+".join(sorted(parts)) or "nothing": num_bytes
                    for parts, num_bytes in self.trainer_without.items()
                },
            },
        }
