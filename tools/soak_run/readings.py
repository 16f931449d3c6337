"""What a run holds after each of its swaps: memory, file descriptors, threads, shared memory."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from colocate.adapters.memory.processes import resident_bytes
from tools.run_processes import processes_of, run_id_of

POLL_S = 0.1
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Reading:
    """Right after a swap.

    Attributes:
        swap: Its number, from 1.
        held: By name, as ``engine.rss_bytes``.
    """

    swap: int
    held: dict[str, float]


class JournalTail:
    """Counts the swaps in a journal that is being written, without reading a line twice."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = b""

    def new_swaps(self) -> Iterator[int]:
        """For each swap that was closed since the last call: bytes of the journal up to there."""
        try:
            with self._path.open("rb") as file:
                file.seek(self._offset)
                found = self._rest + file.read()
                self._offset = file.tell()
        except FileNotFoundError:
            return
        begin = self._offset - len(found)
        *lines, self._rest = found.split(b"\n")
        for line in lines:
            begin += len(line) + 1
            if b"CloseSwap" in line and _closes_swap(line):
                yield begin


def _closes_swap(line: bytes) -> bool:
    return any(name == "CloseSwap" for name, _ in json.loads(line)["actions"])


def watch(driver: psutil.Popen, run_dir: Path) -> Iterator[Reading]:
    """A reading after each swap, until the driver has ended.

    Swaps that close faster than they can be looked at share a reading.
    """
    tail = JournalTail(run_dir / "events.jsonl")
    swap, before = 0, 0
    is_over = False
    while not is_over:
        is_over = driver.poll() is not None
        ends = list(tail.new_swaps())
        if not ends:
            time.sleep(POLL_S)
            continue
        swap += len(ends)
        held = {"journal.bytes_per_swap": (ends[-1] - before) / len(ends)}
        before = ends[-1]
        yield Reading(swap, held | read_processes(driver) | read_shared_memory(driver))


def read_processes(driver: psutil.Process) -> dict[str, float]:
    """Sums over the processes of each kind; a kind that has none is absent."""
    held: dict[str, float] = {}
    for kind, processes in processes_of(driver).items():
        alive = [process for process in processes if process.is_running()]
        if not alive:
            continue
        try:
            held |= {
                f"{kind}.rss_bytes": sum(resident_bytes(process.pid) for process in alive),
                f"{kind}.file_descriptors": sum(process.num_fds() for process in alive),
                f"{kind}.threads": sum(process.num_threads() for process in alive),
                f"{kind}.processes": len(alive),
            }
        except psutil.NoSuchProcess:
            continue
    return held


def read_shared_memory(driver: psutil.Process) -> dict[str, float]:
    """What lies in shared memory under the name of the driver's run."""
    run_id = run_id_of(driver)
    if run_id is None:
        return {}
    sizes = [path.stat().st_size for path in SHARED_MEMORY.glob(f"*{run_id}*")]
    return {"shared_memory.bytes": sum(sizes), "shared_memory.files": len(sizes)}
