"""Which processes a tenant is made of, and what each holds of the machine's RAM.

All answers come from ``/proc``, and are cheap: a gate that waits for memory to fall reads them many
times a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

_RESIDENT_FIELDS = (b"RssAnon:", b"RssShmem:")


class ProcessTree:
    """All processes of the machine at one instant, by parent."""

    def __init__(self, parents: Mapping[int, int]) -> None:
        self._alive = parents.keys()
        self._children: dict[int, list[int]] = {}
        for pid, parent in parents.items():
            self._children.setdefault(parent, []).append(pid)

    def with_descendants(self, roots: Iterable[int]) -> set[int]:
        """The given processes and everything below them. One that has ended is left out."""
        found: set[int] = set()
        waiting = list(roots)
        while waiting:
            pid = waiting.pop()
            if pid in self._alive and pid not in found:
                found.add(pid)
                waiting.extend(self._children.get(pid, ()))
        return found


class ProcessTable:
    """Reads process trees, each cheaper than the first: a parent is asked for once.

    The kernel can also tell a process's children, but only by the thread that forked them: 7 µs a
    thread, of which an engine has hundreds. A number that the kernel gave to another process in
    the meantime, and a process that was left to a new parent, are seen ``refresh_s`` later at most.

    Args:
        refresh_s: After so long every process is asked anew.
        clock: Seconds that never go back.
    """

    def __init__(
        self, refresh_s: float = 30.0, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._refresh_s = refresh_s
        self._clock = clock
        self._refreshed_s = clock()
        self._parents: dict[int, int] = {}

    def read(self) -> ProcessTree:
        """The processes that are alive now."""
        known = self._parents
        if self._clock() - self._refreshed_s >= self._refresh_s:
            known, self._refreshed_s = {}, self._clock()
        parents: dict[int, int] = {}
        for name in os.listdir("/proc"):
            if name.isdecimal():
                pid = int(name)
                parent = known[pid] if pid in known else _parent(pid)
                if parent is not None:
                    parents[pid] = parent
        self._parents = parents
        return ProcessTree(parents)


def _parent(pid: int) -> int | None:
    """``None`` where the process has ended."""
    try:
        # Not through `Path`, which would take longer than the kernel does.
        file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    except (FileNotFoundError, ProcessLookupError):
        return None
    try:
        stat = os.read(file, 4096)
    except ProcessLookupError:
        return None
    finally:
        os.close(file)
    # "PID (NAME) STATE PPID ...", where the name may hold anything.
    return int(stat[stat.rindex(b")") + 1 :].split()[1])


def resident_bytes(pid: int) -> int:
    """Anonymous and shared memory of one process that is in RAM now; 0 for one that has ended.

    Pages of mapped files (libraries, checkpoints) are left out: the kernel takes them back by
    itself, and no phase of a run can release them. Proportional set size would divide pages that
    forked processes share, but costs hundreds of times as much (``mapped_bytes``).

    Host memory that CUDA has pinned is in here. What ``cudaHostAlloc`` gives (torch's
    ``pin_memory``, and so vLLM's copy of the weights in sleep level 1) is shared memory to the
    kernel, ``RssShmem``, though not a byte of it lies in ``/dev/shm``; what ``cudaHostRegister``
    pins stays what it was, ``RssAnon`` for plain allocations. Reported so for driver 570 and
    kernel 6.14 (https://github.com/MakazhanAlpamys/Soup/issues/655), never measured here. Where a
    driver maps its own pages instead, the kernel counts them for no process, and only the
    machine's available memory tells of them.

    Raises:
        PermissionError: where another user's process may not be read.
    """
    try:
        status = Path(f"/proc/{pid}/status").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return sum(
        int(line.split()[1]) * 1024
        for line in status.splitlines()
        if line.startswith(_RESIDENT_FIELDS)
    )


class Mapped(NamedTuple):
    """RAM that a process has mapped, files included, in bytes.

    Attributes:
        rss: Resident set size: every page in full.
        pss: Proportional set size: a page that n processes map counts 1/n, so that the sum over
            processes counts it once.
    """

    rss: int
    pss: int


def mapped_bytes(pid: int) -> Mapped:
    """Resident and proportional set size of one process; zeros for one that has ended.

    The kernel walks every page for it, holding the mapping's lock, which stops the process where
    it allocates: measured at 16 ms for one of 1.2 GB, so not for a gate.

    Raises:
        PermissionError: where the process is another user's.
    """
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return Mapped(0, 0)
    sizes = {
        name: int(rest.split()[0]) * 1024
        for name, _, rest in (line.partition(b":") for line in rollup.splitlines())
        if name in (b"Rss", b"Pss")
    }
    return Mapped(sizes.get(b"Rss", 0), sizes.get(b"Pss", 0))
