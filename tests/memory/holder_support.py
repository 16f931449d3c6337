"""Processes that hold a known amount of memory."""

from __future__ import annotations

import subprocess
import sys

MIB = 2**20

# Holds argv[2] MiB of its own, private or shared; with argv[3], a child holds that many more.
# Says so; then does as each line says, and ends with its input.
_PROGRAM = """
import mmap, subprocess, sys
program, kind, size = sys.argv[1:4]
held = [mmap.mmap(-1, int(size) * 2**20 + 1) if kind == "shared" else bytearray(int(size) * 2**20)]
for start in range(0, len(held[0]), 4096):
    held[0][start] = 1
def add(size):
    child = subprocess.Popen([sys.executable, "-c", program, program, kind, size],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child.stdout.readline()
    return child
children = [add(size) for size in sys.argv[4:]]
print("holding", flush=True)
for line in sys.stdin:
    match line.split():
        case ["drop"]:
            held.clear()
        case ["fork", size]:
            children.append(add(size))
    print("done", flush=True)
"""


class Holder:
    """``num_mib`` of private memory, or of the anonymous shared kind that pinned memory is."""

    def __init__(self, num_mib: int, below: int | None = None, *, shared: bool = False) -> None:
        kind = "shared" if shared else "private"
        sizes = [str(num_mib)] if below is None else [str(num_mib), str(below)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, _PROGRAM, kind, *sizes],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._await()

    @property
    def pid(self) -> int:
        return self.process.pid

    def drop(self) -> None:
        self._tell("drop")

    def fork(self, num_mib: int) -> None:
        """Starts a process below this one, which holds so much."""
        self._tell(f"fork {num_mib}")

    def end(self) -> None:
        self.process.communicate(timeout=300)

    def _tell(self, command: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(command + "\n")
        self.process.stdin.flush()
        self._await()

    def _await(self) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline()
