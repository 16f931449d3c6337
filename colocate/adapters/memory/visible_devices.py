"""Which GPUs CUDA will use, told by UUID.

CUDA numbers GPUs in an order of its own (fastest first, unless told otherwise), NVML in the order
of the bus. An index of one is not an index of the other, so everything here ends in UUIDs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from colocate.adapters.memory.errors import MemoryProbeError


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as NVML lists it, in the order of the bus."""

    uuid: str
    name: str


def select_devices(
    devices: Sequence[Device],
    *,
    visible_devices: str | None,
    device_order: str | None,
    num_devices: int | None,
) -> tuple[str, ...]:
    """UUIDs of the GPUs that a CUDA process with this environment sees, in its order.

    Entries are indices, UUIDs, or prefixes of UUIDs. As in CUDA, the list ends before the first
    entry that is a negative index.

    Args:
        devices: All GPUs of the machine.
        visible_devices: ``CUDA_VISIBLE_DEVICES``; ``None`` where not set.
        device_order: ``CUDA_DEVICE_ORDER``; ``None`` where not set.
        num_devices: Takes so many from the first; ``None``: all.

    Raises:
        MemoryProbeError: nothing visible, fewer than ``num_devices``, an entry that names no GPU
            or several, one GPU twice, or an index whose GPU depends on CUDA's own order.
    """
    if visible_devices is None:
        chosen = [device.uuid for device in devices]
        by_index = num_devices is not None and num_devices < len(chosen)
    else:
        entries = _entries(visible_devices)
        chosen = [_find(devices, entry, visible_devices) for entry in entries]
        by_index = any(entry.isdecimal() for entry in entries)
    shown = "not set" if visible_devices is None else repr(visible_devices)
    if len(set(chosen)) < len(chosen):
        raise MemoryProbeError(
            f"CUDA_VISIBLE_DEVICES ({shown}) names a GPU twice, and CUDA then shows none; "
            "name each once"
        )
    if len(chosen) < (num_devices or 1):
        raise MemoryProbeError(
            f"the run uses {num_devices or 1} GPU(s), but {len(chosen)} of {len(devices)} are "
            f"visible (CUDA_VISIBLE_DEVICES: {shown}); make more visible, or use device=cpu"
        )
    if by_index and device_order != "PCI_BUS_ID" and len({d.name for d in devices}) > 1:
        raise MemoryProbeError(
            "the GPUs of this machine differ, and CUDA numbers them fastest first: index and GPU "
            f"cannot be matched (CUDA_VISIBLE_DEVICES: {shown}); set "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPUs by UUID (`nvidia-smi -L`)"
        )
    return tuple(chosen if num_devices is None else chosen[:num_devices])


def _entries(visible_devices: str) -> list[str]:
    entries: list[str] = []
    for entry in visible_devices.split(","):
        entry = entry.strip()
        if not entry or entry.startswith("-"):
            break
        entries.append(entry)
    return entries


def _find(devices: Sequence[Device], entry: str, visible_devices: str) -> str:
    where = f"CUDA_VISIBLE_DEVICES ({visible_devices!r})"
    if entry.isdecimal():
        if int(entry) >= len(devices):
            raise MemoryProbeError(
                f"{where} names GPU {entry}, but there are {len(devices)}, counted from 0"
            )
        return devices[int(entry)].uuid
    matches = [device.uuid for device in devices if device.uuid.startswith(entry)]
    if len(matches) != 1:
        found = "no GPU" if not matches else f"{len(matches)} GPUs"
        raise MemoryProbeError(
            f"{where}: {entry!r} matches {found}; `nvidia-smi -L` lists the UUIDs"
        )
    return matches[0]
