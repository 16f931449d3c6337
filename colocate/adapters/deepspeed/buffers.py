"""Memory that engine workers can map: files in shared memory on CPU, CUDA IPC on GPUs."""

from __future__ import annotations

import mmap
import os
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from colocate.adapters.cuda_ipc import HANDLE_FIELDS
from colocate.adapters.deepspeed.shared_memory import FOLDER, file_prefix


class Buffers(Protocol):
    """Room for a few buckets at a time.

    Attributes:
        num_slots: How many buckets exist side by side. With two, one is packed while engine
            workers read the other.
        common: All ranks write into one buffer, each only the part of each tensor that it holds.
            Otherwise each has a buffer of its own, and writes everything into it.
    """

    num_slots: int
    common: bool

    def open(self, slot: int, num_bytes: int) -> Tensor:
        """The slot's memory, uint8 (num_bytes,); what it held is lost. All ranks call it."""

    def handle(self, slot: int) -> dict[str, Any] | None:
        """How an engine worker maps the slot, once writes to it are done.

        None where another rank says it.
        """

    def rest(self) -> None:
        """Gives up between publications what others may need more; what it held is lost."""

    def release(self) -> None:
        """Frees every slot. Processes that still map one keep its memory."""


class SharedMemoryBuffers:
    """Files in ``/dev/shm`` that only this user can open: ``{"kind": "shm", "path": ...}``.

    The first rank makes them. They are used again and again until ``release``, publication after
    publication: the kernel takes several times as long to find fresh pages as to copy into old
    ones, and two buckets are little beside the weights that they carry. A file that somebody
    removed meanwhile (``RemoveIPC`` of a login that ended) is made again.
    """

    num_slots = 2
    common = True

    def __init__(self, run_id: str, *, rank: int, num_ranks: int) -> None:
        self._prefix = f"{file_prefix(run_id)}weights-"
        self._makes_files = rank == 0
        self._num_ranks = num_ranks
        self._slots: dict[int, tuple[tuple[int, int] | None, Tensor]] = {}

    def open(self, slot: int, num_bytes: int) -> Tensor:
        """As in ``Buffers``.

        Raises:
            OSError: where shared memory is too small; said before a byte is written, since a
                write beyond its end would kill the process.
        """
        path = self._path(slot)
        held, buffer = self._slots.get(slot, (None, None))
        # A file that the first rank has made anew is another for all. One that is removed just
        # between two ranks' looks leaves one of them waiting, until the phase's deadline.
        is_there = buffer is not None and held == _number(path)
        if buffer is None or not is_there or buffer.numel() < num_bytes:
            if self._makes_files:
                self._reserve(path, num_bytes, fresh=not is_there)
            if self._num_ranks > 1:
                torch.distributed.barrier()
            buffer = _map_resident(path, num_bytes)
            self._slots[slot] = (_number(path), buffer)
        return buffer[:num_bytes]

    def handle(self, slot: int) -> dict[str, Any] | None:
        return {"kind": "shm", "path": str(self._path(slot))} if self._makes_files else None

    def rest(self) -> None:
        pass

    def release(self) -> None:
        for slot in self._slots:
            if self._makes_files:
                self._path(slot).unlink(missing_ok=True)
        self._slots = {}

    def _path(self, slot: int) -> Path:
        return FOLDER / f"{self._prefix}{slot}"

    def _reserve(self, path: Path, num_bytes: int, *, fresh: bool) -> None:
        flags = os.O_RDWR | os.O_NOFOLLOW
        if fresh:
            path.unlink(missing_ok=True)
            flags |= os.O_CREAT | os.O_EXCL
        descriptor = os.open(path, flags, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, num_bytes)
        except OSError as error:
            path.unlink(missing_ok=True)
            raise OSError(
                error.errno,
                f"{FOLDER} has no room for a weight bucket of {num_bytes} bytes "
                f"({error.strerror}); lower trainer.publish_bucket_bytes, or make it larger "
                f"(docker run --shm-size)",
            ) from error
        finally:
            os.close(descriptor)


def _number(path: Path) -> tuple[int, int] | None:
    """Of the file that has this name now; None where there is none."""
    try:
        found = path.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _map_resident(path: Path, num_bytes: int) -> Tensor:
    """Maps a file for writing, with all its pages in place.

    One call for all of them takes a fraction of what a fault for each takes while it is written.
    """
    with path.open("r+b") as file:
        pages = mmap.mmap(file.fileno(), num_bytes, mmap.MAP_SHARED | mmap.MAP_POPULATE)
    return torch.frombuffer(pages, dtype=torch.uint8)


class CudaIpcBuffers:
    """GPU memory shared by CUDA IPC, its handle in plain fields.

    ``{"kind": "cuda_ipc", "devices": {UUID: fields}}``, an entry per rank's GPU: each engine
    worker maps the bucket that lies on its own. The fields, in order, are the arguments that
    ``torch.UntypedStorage._new_shared_cuda`` takes after the device's index.

    There is one slot: packing takes a fraction of what loading takes, and memory is scarce.
    Has not been run on the machine it was written on, which has no GPU.
    """

    num_slots = 1
    common = False

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer: Tensor | None = None

    def open(self, slot: int, num_bytes: int) -> Tensor:
        self.release()
        self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        return self._buffer

    def handle(self, slot: int) -> dict[str, Any] | None:
        assert self._buffer is not None
        torch.cuda.synchronize(self._device)
        _, *values = self._buffer.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]
        uuid = f"GPU-{torch.cuda.get_device_properties(self._device).uuid}"
        fields = dict(zip(HANDLE_FIELDS, values, strict=True))
        return {"kind": "cuda_ipc", "devices": {uuid: fields}}

    def rest(self) -> None:
        self.release()

    def release(self) -> None:
        if self._buffer is not None:
            self._buffer = None
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
