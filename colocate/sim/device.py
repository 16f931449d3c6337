"""What is on the simulated device, and what moving it takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from colocate.config import SimMemoryConfig
from colocate.core.memory import EVICTED
from colocate.core.types import ENGINE_PARTS, TRAINER_PARTS, MemorySample, Part, SleepMode


class SimDevice:
    """Bytes on one device, which stands for all: they hold equal shards."""

    def __init__(self, config: SimMemoryConfig) -> None:
        self._config = config
        self.sizes: dict[Part, int] = {
            Part.KV_CACHE: config.kv_bytes,
            Part.WEIGHTS: config.weights_bytes,
            Part.PARAMETERS: config.parameters_bytes,
            Part.GRADIENTS: config.gradients_bytes,
            Part.OPTIMIZER: config.optimizer_bytes,
            Part.REFERENCE: 0,
        }
        self._there: set[Part] = set()
        self._copied = False

    def bytes_of(self, parts: Collection[Part]) -> int:
        """Of those that are there."""
        return sum(self.sizes[part] for part in parts if part in self._there)

    def away(self, parts: Collection[Part]) -> int:
        """Bytes of those that are not there."""
        return sum(self.sizes[part] for part in parts if part not in self._there)

    def bring(self, parts: Collection[Part]) -> None:
        self._there |= set(parts)

    def evict(self, parts: Collection[Part]) -> None:
        self._there -= set(parts)

    def evict_engine(self, mode: SleepMode) -> int:
        """Evicts what the mode does; returns the bytes that were copied to host memory."""
        self._copied = mode is SleepMode.LEVEL_1
        copied = self.bytes_of({Part.WEIGHTS}) if self._copied else 0
        self.evict(EVICTED[mode])
        return copied

    def wake_weights(self) -> int:
        """Returns the bytes that were copied back from host memory."""
        copied = self.away({Part.WEIGHTS}) if self._copied else 0
        self.bring({Part.WEIGHTS})
        return copied

    def held(self, parts: Collection[Part]) -> Mapping[Part, int]:
        return {part: self.sizes[part] if part in self._there else 0 for part in parts}

    def sample(self, *, trains: bool = False) -> MemorySample | None:
        """What a probe reads; None where nothing measures."""
        config = self._config
        if config.device_bytes is None:
            return None
        tenants = {
            "engine": config.engine_residual_bytes + self.bytes_of(ENGINE_PARTS),
            "trainer": config.trainer_residual_bytes
            + self.bytes_of(TRAINER_PARTS)
            + (config.activations_bytes if trains else 0),
        }
        return MemorySample(used=sum(tenants.values()), total=config.device_bytes, tenants=tenants)
