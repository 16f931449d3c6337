"""Chooses the probe that fits the run's device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from colocate.ports import MemoryProbe


def make_probe(
    device: Literal["cpu", "cuda"],
    tenants: Mapping[str, Callable[[], Sequence[int]]],
    total_bytes: int | None,
    *,
    environment: Mapping[str, str],
    num_devices: int = 1,
    host_budget_bytes: int | None = None,
) -> MemoryProbe:
    """The NVML probe on CUDA, the RAM probe on CPU.

    Args:
        device: What the run trains and generates on.
        tenants: Name of each tenant (``"engine"``, ``"trainer"``) and the function that tells its
            live processes; processes below those are found.
        total_bytes: ``memory.budget_bytes``; ``None``: the device, or the machine's RAM.
        environment: The process's environment, for CUDA's choice of GPUs.
        num_devices: GPUs that the run uses; ignored on CPU.
        host_budget_bytes: ``memory.host_budget_bytes``; ``None``: the machine's RAM, or the
            tightest limit of the control groups.

    Raises:
        MemoryProbeError: the device's memory cannot be read on this machine.
    """
    if device == "cuda":
        from colocate.adapters.memory.nvml import NvmlProbe

        return NvmlProbe(
            tenants,
            total_bytes,
            visible_devices=environment.get("CUDA_VISIBLE_DEVICES"),
            device_order=environment.get("CUDA_DEVICE_ORDER"),
            num_devices=num_devices,
            host_budget_bytes=host_budget_bytes,
        )
    from colocate.adapters.memory.psutil_probe import PsutilProbe

    return PsutilProbe(tenants, total_bytes, host_budget_bytes=host_budget_bytes)
