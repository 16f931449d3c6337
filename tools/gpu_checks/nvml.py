"""What NVML says of the GPU is what torch says, and what torch hides NVML shows.

Never run where it was written, which has no GPU.
"""

from __future__ import annotations

import gc
import os
from dataclasses import dataclass
from pathlib import Path

import pynvml
import torch

from colocate.adapters.memory.nvml import NvmlProbe
from tools.gpu_checks.checks import Checks, mib

TOLERANCE = 32 * 2**20
"""An allocator's rounding and what else comes and goes on a GPU that is a little in use."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes of the first GPU, by who tells them; ``mine`` is None where NVML tells no process's."""

    nvml: int
    mine: int | None
    cuda: int
    allocated: int
    reserved: int


def run(checks: Checks, device: str, folder: Path) -> None:
    probe = NvmlProbe(
        {"me": lambda: [os.getpid()]},
        None,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        device_order=os.environ.get("CUDA_DEVICE_ORDER"),
        num_devices=1,
    )
    try:
        _identities(checks)
        _amounts(checks, probe)
        told = probe.telemetry()
        wanted = ("gpu0.utilization", "gpu0.temperature_c", "gpu0.power_w")
        figures = ", ".join(f"{name} {told[name]:.0f}" for name in wanted if name in told)
        checks.check("telemetry", bool(figures), figures or "nothing told")
    finally:
        probe.release()


def _identities(checks: Checks) -> None:
    """CUDA numbers GPUs in another order than NVML: only the UUID says which is which."""
    probe = NvmlProbe(
        {},
        None,
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
        device_order=os.environ.get("CUDA_DEVICE_ORDER"),
    )
    try:
        by_torch = [
            torch.cuda.get_device_properties(index) for index in range(torch.cuda.device_count())
        ]
        checks.check(
            "UUIDs in torch's order",
            # A MIG instance's begins with MIG-; torch tells the rest.
            [uuid.partition("-")[2] for uuid in probe.uuids] == [str(p.uuid) for p in by_torch],
            f"{len(probe.uuids)} by NVML, {len(by_torch)} by torch; the first {probe.uuids[0]}",
        )
        for uuid, properties in zip(probe.uuids, by_torch, strict=False):
            handle = pynvml.nvmlDeviceGetHandleByUUID(uuid)
            name = pynvml.nvmlDeviceGetName(handle)
            total = int(pynvml.nvmlDeviceGetMemoryInfo(handle).total)
            checks.check(
                f"name and size of {uuid[:12]}",
                name == properties.name and 0.9 < properties.total_memory / total <= 1,
                f"{name}: {mib(total)} by NVML, {mib(properties.total_memory)} by torch",
            )
    finally:
        probe.release()


def _amounts(checks: Checks, probe: NvmlProbe) -> None:
    torch.zeros(1, device="cuda:0")  # the context and its overhead come first
    torch.cuda.synchronize()
    before = _read(probe)
    amount = 2**30 if torch.cuda.mem_get_info(0)[0] > 4 * 2**30 else 2**28
    block = torch.ones(amount, dtype=torch.uint8, device="cuda:0")
    torch.cuda.synchronize()
    full = _read(probe)
    _changed(checks, f"allocating {mib(amount)}", before, full, amount, allocated=amount)
    del block
    gc.collect()
    torch.cuda.synchronize()
    cached = _read(probe)
    _changed(checks, "freed, but kept by torch", before, cached, amount, allocated=0)
    torch.cuda.empty_cache()
    empty = _read(probe)
    _changed(checks, "given back", before, empty, 0, allocated=0)


def _changed(
    checks: Checks, name: str, before: Reading, now: Reading, held: int, *, allocated: int
) -> None:
    """``held`` is what the device should see more than before, ``allocated`` what tensors take."""
    seen = {"NVML": now.nvml - before.nvml, "mem_get_info": now.cuda - before.cuda}
    if now.mine is not None and before.mine is not None:
        seen["NVML of this process"] = now.mine - before.mine
    checks.check(
        name,
        all(abs(value - held) <= TOLERANCE for value in seen.values())
        and abs(now.reserved - before.reserved - held) <= TOLERANCE
        and now.allocated - before.allocated == allocated,
        ", ".join(f"{who} {value / 2**20:+,.0f}" for who, value in seen.items())
        + f", torch's tensors {(now.allocated - before.allocated) / 2**20:+,.0f} MiB",
    )
    if now.mine is None:
        checks.skip(f"{name}, by process", "the driver tells no process's bytes here")


def _read(probe: NvmlProbe) -> Reading:
    sample = probe.sample()
    free, total = torch.cuda.mem_get_info(0)
    return Reading(
        nvml=sample.used,
        mine=sample.tenants.get("me"),
        cuda=total - free,
        allocated=torch.cuda.memory_allocated(0),
        reserved=torch.cuda.memory_reserved(0),
    )
