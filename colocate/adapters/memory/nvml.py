"""The probe of runs on GPUs: what the driver says, not what an allocator believes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import psutil

from colocate.adapters.memory.errors import MemoryProbeError
from colocate.adapters.memory.processes import with_descendants
from colocate.adapters.memory.visible_devices import Device, select_devices
from colocate.core.types import MemorySample

logger = logging.getLogger(__name__)

_DOCTOR = "`colocate doctor` shows what this machine has"


class NvmlProbe:
    """Reads the GPUs that CUDA will use, found by UUID and never by CUDA's own index.

    A sample is of the *fullest* of the run's GPUs: engine workers and trainer ranks are laid out
    alike on all of them, and what fits on the fullest fits on each. ``used`` holds everything on
    that GPU, strangers' memory too, since that is what an allocation meets.

    Args:
        tenants: Name of each tenant and the function that tells its live processes.
        total_bytes: What the run may hold of one GPU; ``None``: the whole GPU.
        visible_devices: Value of ``CUDA_VISIBLE_DEVICES``; ``None`` where it is not set.
        device_order: Value of ``CUDA_DEVICE_ORDER``; ``None`` where it is not set.
        num_devices: How many of the visible GPUs the run uses, from the first; ``None``: all.

    Raises:
        MemoryProbeError: no NVML library, no driver, a clashing Python package, or a selection
            that names no GPU of this machine.
    """

    provider = "nvml"

    def __init__(
        self,
        tenants: Mapping[str, Callable[[], Sequence[int]]],
        total_bytes: int | None,
        *,
        visible_devices: str | None,
        device_order: str | None = None,
        num_devices: int | None = None,
    ) -> None:
        self._nvml = _open_nvml()
        self._tenants = dict(tenants)
        self._budget = total_bytes
        self._lock = threading.Lock()
        self._closed = False
        self._warned: set[str] = set()
        try:
            devices = self._list_devices(visible_devices)
            self.uuids: tuple[str, ...] = select_devices(
                devices,
                visible_devices=visible_devices,
                device_order=device_order,
                num_devices=num_devices,
            )
            self._handles = {
                uuid: self._nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in self.uuids
            }
        except self._nvml.NVMLError as error:
            self.release()
            raise MemoryProbeError(f"NVML cannot list the GPUs: {error}; {_DOCTOR}") from error
        except MemoryProbeError:
            self.release()
            raise

    def sample(self) -> MemorySample:
        """Reads every GPU of the run; returns the one with the least memory free.

        Raises:
            MemoryProbeError: the driver no longer answers, or the probe is released.
        """
        with self._lock:
            if self._closed:
                raise MemoryProbeError("the NVML probe is released; no sample can be taken")
            try:
                readings = [self._read(uuid) for uuid in self.uuids]
            except self._nvml.NVMLError as error:
                raise MemoryProbeError(
                    f"NVML stopped answering for GPU {', '.join(self.uuids)}: {error}. The driver "
                    "was unloaded or the GPU fell off the bus; see `dmesg` for Xid errors, then "
                    "resume from the last checkpoint"
                ) from error
            uuid, used, total = min(readings, key=lambda reading: reading[2] - reading[1])
            tenants = self._tenant_bytes(uuid)
        if used > total:
            self._warn_once(
                "over",
                "GPU %s reports %d bytes used of %d: none is counted free",
                uuid,
                used,
                total,
            )
        return MemorySample(used=used, total=total, tenants=tenants)

    def release(self) -> None:
        """Closes NVML for this probe. Safe to call twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            try:
                self._nvml.nvmlShutdown()
            except self._nvml.NVMLError as error:
                logger.warning("NVML did not shut down cleanly: %s", error)

    def _list_devices(self, visible_devices: str | None) -> list[Device]:
        nvml = self._nvml
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        devices = [
            Device(uuid=nvml.nvmlDeviceGetUUID(handle), name=nvml.nvmlDeviceGetName(handle))
            for handle in handles
        ]
        # MIG instances are not counted above; NVML finds them by their full UUID only.
        for entry in (visible_devices or "").split(","):
            if (uuid := entry.strip()).startswith("MIG-"):
                nvml.nvmlDeviceGetHandleByUUID(uuid)
                devices.append(Device(uuid=uuid, name="MIG"))
        return devices

    def _read(self, uuid: str) -> tuple[str, int, int]:
        memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handles[uuid])
        total = int(memory.total)
        return uuid, int(memory.used), total if self._budget is None else min(total, self._budget)

    def _tenant_bytes(self, uuid: str) -> dict[str, int]:
        """Bytes by tenant on one GPU; a tenant about which the driver says nothing is absent."""
        try:
            processes = self._nvml.nvmlDeviceGetComputeRunningProcesses(self._handles[uuid])
        except self._nvml.NVMLError as error:
            self._warn_once("processes", "GPU memory by process is not available: %s", error)
            return {}
        by_pid: dict[int, int | None] = {int(p.pid): p.usedGpuMemory for p in processes}
        if any(not psutil.pid_exists(pid) for pid in by_pid):
            # Numbers of another PID namespace may by chance equal ours, so none is trusted.
            self._warn_once(
                "namespace",
                "the driver lists processes that do not exist here (another PID namespace, or "
                "one that just ended): memory by tenant is left out of such samples",
            )
            return {}
        tenants: dict[str, int] = {}
        for name, process_ids in self._tenants.items():
            held = [by_pid[pid] for pid in with_descendants(process_ids()) if pid in by_pid]
            known = [num_bytes for num_bytes in held if num_bytes is not None]
            if held and len(known) == len(held):
                tenants[name] = sum(known)
        return tenants

    def _warn_once(self, topic: str, message: str, *values: object) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            logger.warning(message, *values)


def _open_nvml() -> Any:
    """Imports and initialises NVML's Python binding, and proves that it is NVIDIA's own."""
    try:
        clashing = version("pynvml")
    except PackageNotFoundError:
        clashing = None
    if clashing is not None and int(clashing.split(".")[0]) < 12:
        raise MemoryProbeError(
            f"package pynvml {clashing} hides NVIDIA's own binding of that name; remedy: "
            "`pip uninstall pynvml`, then `pip install --force-reinstall nvidia-ml-py`"
        )
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise MemoryProbeError(
            f"NVML cannot be used: {error}. device=cuda needs NVIDIA's driver and its "
            f"libnvidia-ml.so.1 (in a container: the NVIDIA container toolkit); {_DOCTOR}. "
            "device=cpu runs without"
        ) from error
    return pynvml
