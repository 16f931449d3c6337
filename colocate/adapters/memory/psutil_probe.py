"""The probe of runs without a GPU: the RAM that the run's own processes hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from colocate.adapters.memory.host import HostMemory, usable_ram_bytes
from colocate.core.types import MemorySample


class PsutilProbe:
    """Reads RAM of the tenants' processes and of all processes below them.

    The "device" is a share of the machine's RAM. ``used`` is what the tenants hold together;
    a process that two tenants name is counted once in it. The host is the same RAM:
    ``host_used`` also counts this process and everything else below it, environments too.

    Args:
        tenants: Name of each tenant and the function that tells its live processes.
        total_bytes: The share; ``None`` for all RAM that this process may use.
        host_budget_bytes: What the whole run may hold; ``None`` for all RAM that this process
            may use.
    """

    provider = "psutil"

    def __init__(
        self,
        tenants: Mapping[str, Callable[[], Sequence[int]]],
        total_bytes: int | None,
        *,
        host_budget_bytes: int | None = None,
    ) -> None:
        self._total = total_bytes if total_bytes is not None else usable_ram_bytes()
        self._host = HostMemory(tenants, host_budget_bytes)

    def sample(self) -> MemorySample:
        """One reading; a tenant that may not be read is absent, and ``used`` too low by it."""
        host = self._host.read()
        tenants = frozenset().union(*host.members.values())
        return MemorySample(
            used=sum(held for pid, held in host.by_process.items() if pid in tenants),
            total=self._total,
            tenants=host.tenants(),
            host_used=host.used,
            host_free=host.free,
        )

    def telemetry(self) -> dict[str, float]:
        """Sizes of each tenant's group of processes, and what the machine has available.

        ``"engine.rss_bytes"`` and ``"engine.pss_bytes"``, mapped files included, for each tenant;
        ``"host.available_bytes"``; ``"host.shared_memory_free_bytes"``. Slow, about 16 ms a
        gigabyte, in which processes wait where they allocate: to be sampled seldom
        (``memory.telemetry_interval_s``).
        """
        values = self._host.telemetry()
        for name, mapped in self._host.mapped().items():
            values[f"{name}.rss_bytes"] = mapped.rss
            values[f"{name}.pss_bytes"] = mapped.pss
        return values

    def release(self) -> None:
        """Nothing is held between samples; safe to call twice."""
