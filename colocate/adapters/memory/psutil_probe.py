"""The probe of runs without a GPU: the RAM that the run's own processes hold."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import psutil

from colocate.adapters.memory.processes import resident_bytes, with_descendants
from colocate.core.types import MemorySample

logger = logging.getLogger(__name__)


class PsutilProbe:
    """Reads RAM of the tenants' processes and of all processes below them.

    The "device" is a share of the machine's RAM. ``used`` is what the tenants hold together;
    a process that two tenants name is counted once in it.

    Args:
        tenants: Name of each tenant and the function that tells its live processes.
        total_bytes: The share; ``None`` for all RAM that this process may use.
    """

    provider = "psutil"

    def __init__(
        self, tenants: Mapping[str, Callable[[], Sequence[int]]], total_bytes: int | None
    ) -> None:
        self._tenants = dict(tenants)
        self._total = total_bytes if total_bytes is not None else usable_ram_bytes()
        self._reported_unreadable: set[str] = set()

    def sample(self) -> MemorySample:
        held: dict[int, int] = {}
        tenants: dict[str, int] = {}
        for name, process_ids in self._tenants.items():
            pids = with_descendants(process_ids())
            try:
                held.update((pid, resident_bytes(pid)) for pid in pids)
            except PermissionError as error:
                self._report_unreadable(name, error)
                continue
            tenants[name] = sum(held[pid] for pid in pids)
        return MemorySample(used=sum(held.values()), total=self._total, tenants=tenants)

    def release(self) -> None:
        """Nothing is held between samples; safe to call twice."""

    def _report_unreadable(self, tenant: str, error: PermissionError) -> None:
        if tenant in self._reported_unreadable:
            return
        self._reported_unreadable.add(tenant)
        logger.warning(
            "memory of tenant %r cannot be read (%s): it is left out of every sample, and `used` "
            "is too low by it; run all processes of a run as one user",
            tenant,
            error,
        )


def usable_ram_bytes() -> int:
    """The machine's RAM, or the tightest limit of the control groups this process is in."""
    return min([int(psutil.virtual_memory().total), *_cgroup_limits(Path("/sys/fs/cgroup"))])


def _cgroup_limits(root: Path) -> list[int]:
    """Memory limits (v2) from this process's group up to the root. "max" means none."""
    membership = Path("/proc/self/cgroup").read_text().splitlines()
    own = next((line[3:] for line in membership if line.startswith("0::")), None)
    if own is None:
        return []
    group = root / own.lstrip("/")
    limits = []
    for folder in (group, *group.parents):
        limit_file = folder / "memory.max"
        if limit_file.is_file() and (limit := limit_file.read_text().strip()) != "max":
            limits.append(int(limit))
        if folder == root:
            break
    return limits
