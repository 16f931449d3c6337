"""Which GPUs CUDA will use, told by UUID.

CUDA numbers GPUs in an order of its own (fastest first, unless told otherwise), NVML in the order
of the bus. An index of one is not an index of the other, so everything here ends in UUIDs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from colocate.adapters.memory.errors import MemoryProbeError


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU, or a MIG instance of one, as NVML lists it, in the order of the bus.

    Attributes:
        uuid: ``GPU-...``, or ``MIG-...`` of an instance.
        name: The model, as ``NVIDIA H200``.
        parent: UUID of the GPU that an instance is a slice of; ``None`` of a GPU.
        split: Of a GPU: it is in MIG mode, so that CUDA sees its instances only.
        old_name: Of an instance: ``MIG-GPU-.../gi/ci``, as drivers before R470 had it.
    """

    uuid: str
    name: str
    parent: str | None = None
    split: bool = False
    old_name: str | None = None


def select_devices(
    devices: Sequence[Device],
    *,
    visible_devices: str | None,
    device_order: str | None,
    num_devices: int | None,
) -> tuple[str, ...]:
    """UUIDs of the GPUs or MIG instances that a CUDA process with this environment sees, in its
    order.

    Entries are indices of GPUs, or UUIDs or their beginnings (``GPU-`` or ``MIG-`` included); the
    first entry tells which. As CUDA does, the list ends before the first entry that is negative,
    empty or of another kind (the driver's ways are known from torch's
    ``torch.cuda._parse_visible_devices``, tested against driver 525). What CUDA would pass over
    in silence but nobody can have meant is refused here.

    Args:
        devices: All GPUs of the machine and their MIG instances.
        visible_devices: ``CUDA_VISIBLE_DEVICES``; ``None`` where not set.
        device_order: ``CUDA_DEVICE_ORDER``; ``None`` where not set.
        num_devices: Takes so many from the first; ``None``: all.

    Raises:
        MemoryProbeError: nothing visible, fewer than ``num_devices``, an entry that names no GPU
            or several, one GPU twice, an index whose GPU depends on CUDA's own order, or a GPU
            that is split into several MIG instances of which none is named.
    """
    gpus = [device for device in devices if device.parent is None]
    if visible_devices is None:
        chosen = gpus
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
            f"the run uses {num_devices or 1} GPU(s), but {len(chosen)} of {len(gpus)} are "
            f"visible (CUDA_VISIBLE_DEVICES: {shown}); make more visible, or use device=cpu"
        )
    if by_index and device_order != "PCI_BUS_ID" and len({gpu.name for gpu in gpus}) > 1:
        raise MemoryProbeError(
            "the GPUs of this machine differ, and CUDA numbers them fastest first: index and GPU "
            f"cannot be matched (CUDA_VISIBLE_DEVICES: {shown}); set "
            "CUDA_DEVICE_ORDER=PCI_BUS_ID, or name the GPUs by UUID (`nvidia-smi -L`)"
        )
    return tuple(_usable(devices, device).uuid for device in chosen[:num_devices])


def _entries(visible_devices: str) -> list[str]:
    """The entries before the list ends. Indices may have spaces around them, UUIDs may not."""
    kind = next((kind for kind in ("GPU-", "MIG-") if visible_devices.startswith(kind)), None)
    entries: list[str] = []
    for entry in visible_devices.split(","):
        if kind is None:
            entry = entry.strip()
            ended = not entry or entry.startswith(("-", "GPU-", "MIG-"))
        else:
            ended = not entry.startswith(kind)
        if ended:
            break
        entries.append(entry)
    return entries


def _find(devices: Sequence[Device], entry: str, visible_devices: str) -> Device:
    where = f"CUDA_VISIBLE_DEVICES ({visible_devices!r})"
    if entry.isdecimal():
        gpus = [device for device in devices if device.parent is None]
        if int(entry) >= len(gpus):
            raise MemoryProbeError(
                f"{where} names GPU {entry}, but there are {len(gpus)}, counted from 0"
            )
        return gpus[int(entry)]
    matches = [
        device
        for device in devices
        if entry.startswith(("GPU-", "MIG-"))
        and (device.uuid.startswith(entry) or device.old_name == entry)
    ]
    if len(matches) != 1:
        found = "no GPU" if not matches else f"{len(matches)} GPUs"
        raise MemoryProbeError(
            f"{where}: {entry!r} matches {found}; `nvidia-smi -L` lists the UUIDs"
        )
    return matches[0]


def _usable(devices: Sequence[Device], device: Device) -> Device:
    """The device itself, or its only instance where it is split."""
    if not device.split:
        return device
    instances = [each for each in devices if each.parent == device.uuid]
    if len(instances) == 1:
        return instances[0]
    if not instances:
        raise MemoryProbeError(
            f"GPU {device.uuid} is in MIG mode and has no instance that this process may use; "
            "create one (`nvidia-smi mig -cgi PROFILE -C`), or switch the mode off"
        )
    names = ", ".join(each.uuid for each in instances)
    raise MemoryProbeError(
        f"GPU {device.uuid} is in MIG mode, and which of its {len(instances)} instances CUDA takes "
        f"depends on the driver; name one in CUDA_VISIBLE_DEVICES: {names}"
    )
