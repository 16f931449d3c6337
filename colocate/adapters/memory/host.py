"""RAM of the run's processes: what they hold, and what they may still take."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import psutil

from colocate.adapters.memory.control_groups import ControlGroups
from colocate.adapters.memory.processes import (
    Mapped,
    ProcessTable,
    mapped_bytes,
    resident_bytes,
)
from colocate.adapters.memory.shared_memory import SharedMemoryError, read_shared_memory

logger = logging.getLogger(__name__)

_Size = TypeVar("_Size")


@dataclass(frozen=True, slots=True, kw_only=True)
class HostReading:
    """The run's RAM at one instant, in bytes.

    Attributes:
        members: Processes of each tenant, those below its own included.
        by_process: What each process of the run holds; one that may not be read is absent.
        used: Their sum; ``None`` where one is absent.
        free: What the run may still take.
    """

    members: Mapping[str, frozenset[int]]
    by_process: Mapping[int, int]
    used: int | None
    free: int

    def tenants(self) -> dict[str, int]:
        """Bytes by tenant; one with a process that may not be read is absent, never zero."""
        return {
            name: sum(self.by_process[pid] for pid in pids)
            for name, pids in self.members.items()
            if pids <= self.by_process.keys()
        }


class HostMemory:
    """Reads the RAM of this process, of the tenants' processes and of all below either.

    Anonymous and shared memory counts, pinned memory with it; see ``resident_bytes`` for what the
    kernel knows of pages that CUDA pinned. Each process is counted once, whoever names it. A page
    that several processes map is counted for each: a bucket of weights while a publication lasts,
    and what a process inherited by a fork and has not written to.

    What may still be taken is the least of three: what the budget leaves; what the machine has
    available (``MemAvailable``: free, or held by caches that the kernel can drop), where pinned
    memory that is counted for no process, and other people's processes, show; and what the
    control groups around this process leave, past which the kernel kills.

    Args:
        tenants: Name of each tenant and the function that tells its live processes.
        budget_bytes: ``memory.host_budget_bytes``; ``None``: the machine's RAM, or the tightest
            limit of the control groups.
    """

    def __init__(
        self, tenants: Mapping[str, Callable[[], Sequence[int]]], budget_bytes: int | None
    ) -> None:
        self._tenants = dict(tenants)
        self._groups = ControlGroups()
        self._budget = budget_bytes if budget_bytes is not None else usable_ram_bytes(self._groups)
        self._processes = ProcessTable()
        self._warned: set[str] = set()

    def read(self) -> HostReading:
        """One reading: about a millisecond for ten processes on a machine of a hundred."""
        tree = self._processes.read()
        members = {
            name: frozenset(tree.with_descendants(process_ids()))
            for name, process_ids in self._tenants.items()
        }
        run = tree.with_descendants([os.getpid()]).union(*members.values())
        by_process = self._each(run, resident_bytes)
        used = sum(by_process.values()) if len(by_process) == len(run) else None
        free = self.available_bytes()
        if used is not None:
            free = min(free, self._budget - used)
        return HostReading(members=members, by_process=by_process, used=used, free=max(0, free))

    def available_bytes(self) -> int:
        """What this process could take now, whatever the run's budget; may be negative."""
        available = int(psutil.virtual_memory().available)
        left = self._groups.left_bytes()
        return available if left is None else min(available, left)

    def mapped(self) -> dict[str, Mapped]:
        """Resident and proportional set size by tenant; as slow as ``mapped_bytes``."""
        sizes: dict[str, Mapped] = {}
        tree = self._processes.read()
        for name, process_ids in self._tenants.items():
            pids = tree.with_descendants(process_ids())
            held = self._each(pids, mapped_bytes)
            if len(held) == len(pids):
                sizes[name] = Mapped(
                    sum(each.rss for each in held.values()), sum(each.pss for each in held.values())
                )
        return sizes

    def telemetry(self) -> dict[str, float]:
        """``host.available_bytes``, and ``host.shared_memory_free_bytes`` where it is known."""
        values: dict[str, float] = {"host.available_bytes": max(0, self.available_bytes())}
        try:
            values["host.shared_memory_free_bytes"] = read_shared_memory().free
        except SharedMemoryError as error:
            self._warn_once("shared memory", "shared memory is left out of telemetry: %s", error)
        return values

    def _each(self, pids: Iterable[int], read: Callable[[int], _Size]) -> dict[int, _Size]:
        sizes: dict[int, _Size] = {}
        for pid in pids:
            try:
                sizes[pid] = read(pid)
            except PermissionError as error:
                self._warn_once(
                    "unreadable",
                    "memory of process %d cannot be read (%s): its tenant is left out of every "
                    "sample, and memory.host_budget_bytes is not held; run all processes of a "
                    "run as one user",
                    pid,
                    error,
                )
        return sizes

    def _warn_once(self, topic: str, message: str, *values: object) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            logger.warning(message, *values)


def usable_ram_bytes(groups: ControlGroups | None = None) -> int:
    """The machine's RAM, or the tightest limit of the control groups this process is in."""
    limit = (groups or ControlGroups()).limit_bytes()
    total = int(psutil.virtual_memory().total)
    return total if limit is None else min(total, limit)
