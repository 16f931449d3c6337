"""Which processes a tenant is made of, and what each holds of the machine's RAM.

Both answers come from ``/proc`` and cost microseconds a process, whatever else runs on the
machine: a gate that waits for memory to fall reads them many times a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

_RESIDENT_FIELDS = (b"RssAnon:", b"RssShmem:")


def with_descendants(roots: Iterable[int]) -> set[int]:
    """The given processes and everything below them. One that has ended is left out.

    The kernel keeps children by the thread that forked them, so every thread is asked.
    """
    found: set[int] = set()
    waiting = list(roots)
    while waiting:
        pid = waiting.pop()
        if pid in found:
            continue
        try:
            threads = list(Path(f"/proc/{pid}/task").iterdir())
        except (FileNotFoundError, ProcessLookupError):
            continue
        found.add(pid)
        for thread in threads:
            try:
                children = (thread / "children").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            waiting.extend(map(int, children.split()))
    return found


def resident_bytes(pid: int) -> int:
    """Anonymous and shared memory of one process that is in RAM now; 0 for one that has ended.

    Pages of mapped files (libraries, checkpoints) are left out: the kernel takes them back by
    itself, and no phase of a run can release them. Proportional set size would divide pages that
    forked processes share, but the kernel walks every page to tell it, holding the mapping's
    lock: measured here at 16 ms for one process of 1.2 GB, against 0.04 ms for this.

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
