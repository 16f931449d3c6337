"""Reads memory and telemetry: for decisions, for the peak of a phase, and to be shown."""

from __future__ import annotations

import asyncio

from colocate.core.types import MemorySample
from colocate.driver.context import Context


class MemoryGauge:
    """``peak`` is the largest reading since ``begin_phase``; None before the first."""

    def __init__(
        self, context: Context, *, sample_interval_s: float, telemetry_interval_s: float
    ) -> None:
        self._run = context
        self._sample_interval_s = sample_interval_s
        self._telemetry_interval_s = telemetry_interval_s
        self.peak: MemorySample | None = None

    def begin_phase(self) -> None:
        self.peak = None

    async def measure(self) -> MemorySample | None:
        """One reading; None where nothing measures."""
        measure = self._run.ports.measure
        if measure is None:
            return None
        sample = await measure()
        if self.peak is None or sample.used > self.peak.used:
            self.peak = sample
        for observer in self._run.observers:
            observer.on_memory(self._run.now_s(), sample)
        return sample

    async def watch_memory(self) -> None:
        """Background samples: into the trace, and into the peak of the phase."""
        while self._run.ports.measure is not None:
            try:
                await self.measure()
            except Exception as error:
                self._run.fault(error)
                return
            await asyncio.sleep(self._sample_interval_s)

    async def watch_telemetry(self) -> None:
        """What cannot be read is absent; a run does not end for want of something to show."""
        while self._run.ports.telemetry is not None:
            values = await self._run.ports.telemetry()
            for observer in self._run.observers:
                observer.on_telemetry(self._run.now_s(), values)
            await asyncio.sleep(self._telemetry_interval_s)
