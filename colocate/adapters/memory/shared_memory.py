"""Room in ``/dev/shm``, where weights pass from the trainer to the engine on CPU.

It is a file system of its own with a size of its own: half of the RAM by default, 64 MiB in a
container that was started without ``--shm-size``. Writing past its end kills the writer with
SIGBUS instead of raising an error, so the room is asked for before it is needed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import psutil

SHARED_MEMORY = Path("/dev/shm")


class SharedMemoryError(RuntimeError):
    """``/dev/shm`` is missing or too small. The message names the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """Size and room of the shared memory's file system, in bytes."""

    total: int
    free: int


def read_shared_memory(folder: Path = SHARED_MEMORY) -> SharedMemory:
    """What a process of this user may still write there.

    The file system promises no RAM: memory that others hold can run out first.

    Raises:
        SharedMemoryError: there is no such folder.
    """
    try:
        size = os.statvfs(folder)
    except FileNotFoundError as error:
        raise SharedMemoryError(
            f"{folder} does not exist: mount a tmpfs there (`mount -t tmpfs tmpfs {folder}`)"
        ) from error
    if size.f_blocks == 0:  # tmpfs with `size=0`: no limit of its own, so the RAM is the limit
        ram = psutil.virtual_memory()
        return SharedMemory(total=ram.total, free=ram.available)
    return SharedMemory(total=size.f_blocks * size.f_frsize, free=size.f_bavail * size.f_frsize)


def check_shared_memory(needed_bytes: int, folder: Path = SHARED_MEMORY) -> int:
    """Free bytes of ``/dev/shm``, at least ``needed_bytes``.

    Raises:
        SharedMemoryError: no such folder, or less is free.
    """
    memory = read_shared_memory(folder)
    if memory.free < needed_bytes:
        raise SharedMemoryError(
            f"{folder} must have {needed_bytes} bytes free, has {memory.free} of {memory.total}; "
            f"delete files that ended runs left there, or make it larger (`mount -o "
            f"remount,size=... {folder}`; of a container: `docker run --shm-size=...`)"
        )
    return memory.free
