"""What the processes of a run use, read from the ``/proc`` that shows them."""

from __future__ import annotations

import contextlib
import os
import re
import resource
from pathlib import Path
from typing import NamedTuple

_TICKS_S = os.sysconf("SC_CLK_TCK")
_OWN_MEMORY = re.compile(r"^Rss(?:Anon|Shmem):\s+(\d+) kB$", re.MULTILINE)


class Process(NamedTuple):
    """What ``/proc`` says of one.

    Attributes:
        pid: Its id.
        parent: Its parent's id.
        cpu_s: Processor time, in seconds, with that of the children it has waited for.
        memory_bytes: Resident, without what is mapped from files. Shared memory counts in each
            process that maps it, and memory before a copy on write in parent and child.
    """

    pid: int
    parent: int
    cpu_s: float
    memory_bytes: int


def processes() -> list[Process]:
    """All that ``/proc`` shows, without those that are ending meanwhile."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                stat = Path("/proc", name, "stat").read_text(errors="replace")
                status = Path("/proc", name, "status").read_text(errors="replace")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            # The name is in parentheses and may contain any of them.
            fields = stat[stat.rindex(")") + 2 :].split()
            ticks = sum(map(int, fields[11:15]))
            kibibytes = sum(map(int, _OWN_MEMORY.findall(status)))
            found.append(Process(int(name), int(fields[1]), ticks / _TICKS_S, kibibytes * 1024))
    return found


def family(all_processes: list[Process], ancestor: int) -> list[Process]:
    """The descendants of one process, itself left out."""
    known = {ancestor}
    found: list[Process] = []
    grown = True
    while grown:
        new = [p for p in all_processes if p.parent in known and p.pid not in known]
        found += new
        known.update(process.pid for process in new)
        grown = bool(new)
    return found


def ended_children_cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def tasks_of_this_user() -> int:
    """Processes and threads on the machine that the kernel counts for this process's user."""
    total = 0
    for process in processes():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if os.stat(f"/proc/{process.pid}").st_uid == os.geteuid():
                total += len(os.listdir(f"/proc/{process.pid}/task"))
    return total
