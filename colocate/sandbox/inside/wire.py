"""What the caller and the sandbox's own processes send each other: a JSON head, then bytes.

    caller -> launcher   frame(spec; standard input, the files to write)
    warden -> caller     STARTED, then frame(report; standard output and error, collected files)
                         or, where the sandbox cannot be set up, frame(fault)

A frame is the head's length in four bytes, the head, and the blobs whose lengths the head has
under ``blobs``.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Sequence
from typing import Any, TypedDict

STARTED = b"S"
FAULT = b"F"
HEAD_LENGTH = struct.Struct("!I")


class Limits(TypedDict):
    """``colocate.sandbox.limits.SandboxLimits`` as plain data."""

    wall_s: float
    cpu_s: float
    memory_bytes: int
    file_bytes: int
    disk_bytes: int
    files: int
    processes: int
    open_files: int
    output_bytes: int


class Spec(TypedDict):
    """What to run. ``files`` names the blobs after the first, which is standard input."""

    argv: list[str]
    environment: dict[str, str]
    limits: Limits
    files: list[str]
    collect: list[str]
    readable: list[str]
    isolation: str


class Report(TypedDict):
    """How it went. ``files`` names the blobs after the first two, the outputs."""

    reason: str
    wait_status: int
    stdout_cut: bool
    stderr_cut: bool
    wall_s: float
    cpu_s: float
    peak_memory_bytes: int
    files: list[str]
    missing: dict[str, str]


class Fault(TypedDict):
    """Why nothing ran. ``unavailable``: the machine's doing, not a fault of the sandbox."""

    unavailable: bool
    message: str


def pack(head: Any, blobs: Sequence[bytes] = ()) -> bytes:
    text = json.dumps({"head": head, "blobs": [len(blob) for blob in blobs]}).encode()
    return b"".join((HEAD_LENGTH.pack(len(text)), text, *blobs))


def unpack(read_exactly: Callable[[int], bytes]) -> tuple[Any, list[bytes]]:
    """Reads one frame from what returns as many bytes as it is asked for, or raises EOFError."""
    (length,) = HEAD_LENGTH.unpack(read_exactly(HEAD_LENGTH.size))
    outer = json.loads(read_exactly(length))
    return outer["head"], [read_exactly(size) for size in outer["blobs"]]
