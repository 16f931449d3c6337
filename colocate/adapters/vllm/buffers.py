"""Opens a bucket's bytes in an engine worker, without a copy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from colocate.adapters.cuda_ipc import HANDLE_FIELDS


def open_buffer(handle: Mapping[str, Any], device: torch.device) -> torch.Tensor:
    """The bytes that a ``WeightBucket.handle`` describes, as a one-dimensional uint8 tensor.

    Args:
        handle: ``{"kind": "shm", "path": ...}``, or ``{"kind": "cuda_ipc", "devices": {UUID:
            fields}}`` with a copy of the bucket on each worker's GPU.
        device: This worker's.

    Raises:
        ValueError: an unknown kind, or no copy on this worker's GPU.
        OSError: a file that cannot be read.
    """
    kind = handle.get("kind")
    if kind == "shm":
        path = str(handle["path"])
        num_bytes = Path(path).stat().st_size
        return torch.from_file(path, shared=False, size=num_bytes, dtype=torch.uint8)
    if kind == "cuda_ipc":
        return _open_cuda_buffer(handle["devices"], device)
    raise ValueError(f"handle.kind: must be 'shm' or 'cuda_ipc', is {kind!r}")


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
