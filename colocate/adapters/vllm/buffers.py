"""Opens a bucket's bytes in an engine worker, without a copy."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from colocate.adapters.cuda_ipc import HANDLE_FIELDS

_MAX_MAPPED = 2
"""A sender fills one while the other is read. What is mapped takes memory, deleted or not."""

_MADV_POPULATE_READ = 22
"""Linux's number; Python 3.11 has no name for it."""


class OpenBuffers:
    """Buckets by what describes them.

    A sender writes one bucket after another into the same shared memory. It is mapped once, since
    the kernel's work for each page takes as long as copying it. Memory of a GPU is mapped for one
    bucket at a time.

    Args:
        device: This worker's.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._mapped: dict[tuple[int, int], torch.Tensor] = {}

    def open(self, handle: Mapping[str, Any]) -> torch.Tensor:
        """The bytes that a ``WeightBucket.handle`` describes, a one-dimensional uint8 tensor.

        Args:
            handle: ``{"kind": "shm", "path": ...}``, or ``{"kind": "cuda_ipc", "devices": {UUID:
                fields}}`` with a copy of the bucket on each worker's GPU.

        Raises:
            ValueError: an unknown kind, or no copy on this worker's GPU.
            OSError: a file that cannot be read.
        """
        kind = handle.get("kind")
        if kind == "shm":
            return self._map_file(str(handle["path"]))
        if kind == "cuda_ipc":
            return _open_cuda_buffer(handle["devices"], self._device)
        raise ValueError(f"handle.kind: must be 'shm' or 'cuda_ipc', is {kind!r}")

    def close(self) -> None:
        """Lets go of all of them, so that their memory is free once the sender has done so too."""
        self._mapped = {}

    def _map_file(self, path: str) -> torch.Tensor:
        found = Path(path).stat()
        # A file that is mapped keeps its number, even where its name is another's by now.
        key = (found.st_dev, found.st_ino)
        buffer = self._mapped.pop(key, None)
        if buffer is None or buffer.numel() != found.st_size:
            buffer = _map_resident(path, found.st_size)
        if len(self._mapped) >= _MAX_MAPPED:
            del self._mapped[next(iter(self._mapped))]
        self._mapped[key] = buffer
        return buffer


def _map_resident(path: str, num_bytes: int) -> torch.Tensor:
    """Maps a file for reading, its pages in place before the first is read.

    Private, so that nothing that is done to it reaches the sender; of pages that are only read no
    copy is made, and they show what the sender writes later.
    """
    with open(path, "rb") as file:
        access = mmap.PROT_READ | mmap.PROT_WRITE
        pages = mmap.mmap(file.fileno(), num_bytes, flags=mmap.MAP_PRIVATE, prot=access)
    with suppress(OSError):  # a kernel before 5.14 finds them one by one, as they are read
        pages.madvise(_MADV_POPULATE_READ)
    return torch.frombuffer(pages, dtype=torch.uint8)


def _open_cuda_buffer(
    devices: Mapping[str, Mapping[str, Any]], device: torch.device
) -> torch.Tensor:
    """Has not been run on the machine it was written on, which has no GPU."""
    uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    if uuid not in devices:
        raise ValueError(
            f"handle.devices: must have a copy on this worker's GPU {uuid}, but has them on "
            f"{sorted(devices)}; pair trainer ranks and engine workers by UUID"
        )
    fields = [devices[uuid][field] for field in HANDLE_FIELDS]
    storage = torch.UntypedStorage._new_shared_cuda(device.index, *fields)
    return torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
