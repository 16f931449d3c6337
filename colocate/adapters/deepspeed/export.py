"""Full parameters packed into buckets that engine workers map: shared memory, or CUDA IPC."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from colocate.adapters.checksum import tensor_checksum
from colocate.adapters.cuda_ipc import HANDLE_FIELDS
from colocate.adapters.deepspeed.engine import TrainingEngine
from colocate.adapters.deepspeed.shared_memory import FOLDER, file_prefix
from colocate.adapters.deepspeed.wire import Entry, Packed

ALIGNMENT_BYTES = 64
"""Of each tensor in a bucket, so that any type can be viewed in place."""


class Exporter:
    """Packs one bucket at a time; the one before is let go of first.

    Args:
        packs: This rank's buckets are mapped by engine workers. Others only take part in the
            gathering.
    """

    def __init__(
        self, engine: TrainingEngine, *, bucket_bytes: int, buffers: Buffers, packs: bool
    ) -> None:
        self._engine = engine
        self._buffers = buffers
        self._packs = packs
        self._buckets = plan_buckets(
            [(name, _num_bytes(parameter)) for name, parameter in engine.named_parameters()],
            bucket_bytes,
        )
        self._parameters = dict(engine.named_parameters())

    @property
    def names(self) -> list[str]:
        return list(self._parameters)

    @property
    def num_buckets(self) -> int:
        return len(self._buckets)

    def pack(self, index: int) -> Packed:
        """Packs bucket ``index``. All ranks must call it together."""
        self.release()
        names = self._buckets[index]
        offsets = []
        end = 0
        for name in names:
            offsets.append(end)
            end += -(-_num_bytes(self._parameters[name]) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        buffer = self._buffers.allocate(end) if self._packs else None
        entries = []
        for name, offset in zip(names, offsets, strict=True):
            value = self._engine.full_parameter(self._parameters[name])
            if buffer is None:
                continue
            num_bytes = value.numel() * value.element_size()
            place = buffer[offset : offset + num_bytes].view(value.dtype).view(value.shape)
            place.copy_(value)
            entries.append(
                Entry(
                    name=name,
                    dtype=str(value.dtype).removeprefix("torch."),
                    shape=list(value.shape),
                    offset=offset,
                    num_bytes=num_bytes,
                    checksum=tensor_checksum(place),
                )
            )
        return Packed(handle=None if buffer is None else self._buffers.handle(), entries=entries)

    def release(self) -> None:
        """Lets go of the current bucket, if there is one."""
        self._buffers.release()


def plan_buckets(sizes: Sequence[tuple[str, int]], bucket_bytes: int) -> list[list[str]]:
    """Names in order, cut so that no bucket exceeds ``bucket_bytes`` unless by a single tensor."""
    buckets: list[list[str]] = []
    room = 0
    for name, num_bytes in sizes:
        if not buckets or num_bytes > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(name)
        room -= num_bytes
    return buckets


def _num_bytes(parameter: nn.Parameter) -> int:
    numel = getattr(parameter, "ds_numel", parameter.numel())
    return int(numel) * parameter.element_size()


class Buffers(Protocol):
    """Memory of the kind that another process can map."""

    def allocate(self, num_bytes: int) -> Tensor:
        """A fresh uint8 tensor (num_bytes,)."""

    def handle(self) -> dict[str, Any]:
        """Says how the tensor allocated last is mapped. Waits for writes to it."""

    def release(self) -> None:
        """Frees the tensor allocated last. Processes that still map it keep it."""


class SharedMemoryBuffers:
    """Files in ``/dev/shm`` that only this user can open: ``{"kind": "shm", "path": ...}``."""

    def __init__(self, run_id: str) -> None:
        self._prefix = f"{file_prefix(run_id)}{os.getpid()}-"
        self._count = 0
        self._path: Path | None = None

    def allocate(self, num_bytes: int) -> Tensor:
        """As in ``Buffers``.

        Raises:
            OSError: where shared memory is too small; said before a byte is written, since a
                write beyond its end would kill the process.
        """
        self._count += 1
        path = FOLDER / f"{self._prefix}{self._count}"
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        self._path = path
        try:
            os.posix_fallocate(descriptor, 0, num_bytes)
        except OSError as error:
            self.release()
            raise OSError(
                error.errno,
                f"{FOLDER} has no room for a weight bucket of {num_bytes} bytes "
                f"({error.strerror}); lower trainer.publish_bucket_bytes, or make it larger "
                f"(docker run --shm-size)",
            ) from error
        finally:
            os.close(descriptor)
        return torch.from_file(str(path), shared=True, size=num_bytes, dtype=torch.uint8)

    def handle(self) -> dict[str, Any]:
        return {"kind": "shm", "path": str(self._path)}

    def release(self) -> None:
        if self._path is not None:
            self._path.unlink(missing_ok=True)
            self._path = None


class CudaIpcBuffers:
    """GPU memory shared by CUDA IPC, its handle in plain fields.

    ``{"kind": "cuda_ipc", "devices": {UUID: fields}}``, an entry per rank's GPU: each engine
    worker maps the bucket that lies on its own. The fields, in order, are the arguments that
    ``torch.UntypedStorage._new_shared_cuda`` takes after the device's index.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer: Tensor | None = None

    def allocate(self, num_bytes: int) -> Tensor:
        self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        return self._buffer

    def handle(self) -> dict[str, Any]:
        assert self._buffer is not None
        torch.cuda.synchronize(self._device)
        _, *values = self._buffer.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]
        uuid = f"GPU-{torch.cuda.get_device_properties(self._device).uuid}"
        fields = dict(zip(HANDLE_FIELDS, values, strict=True))
        return {"kind": "cuda_ipc", "devices": {uuid: fields}}

    def release(self) -> None:
        if self._buffer is not None:
            self._buffer = None
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
