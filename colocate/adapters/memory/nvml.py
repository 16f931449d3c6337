"""The probe of runs on GPUs: what the driver says, not what an allocator believes.

Tested through NVIDIA's own binding, over a stand-in for the driver's library; not yet on a GPU.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence

import psutil

from colocate.adapters.memory.errors import MemoryProbeError
from colocate.adapters.memory.host import HostMemory
from colocate.adapters.memory.nvml_gauges import GAUGES
from colocate.adapters.memory.nvml_library import (
    DOCTOR,
    is_unsupported,
    list_devices,
    open_nvml,
    parent_of,
    remedy,
)
from colocate.adapters.memory.visible_devices import select_devices
from colocate.core.types import MemorySample

logger = logging.getLogger(__name__)


class NvmlProbe:
    """Reads the GPUs that CUDA will use, found by UUID and never by CUDA's own index.

    A sample is of the *fullest* of the run's GPUs: engine workers and trainer ranks are laid out
    alike on all of them, and what fits on the fullest fits on each. ``used`` holds everything on
    that GPU, strangers' memory too, since that is what an allocation meets. A MIG instance is
    read as a GPU of its own size.

    Args:
        tenants: Name of each tenant and the function that tells its live processes.
        total_bytes: What the run may hold of one GPU; ``None``: the whole GPU.
        visible_devices: Value of ``CUDA_VISIBLE_DEVICES``; ``None`` where it is not set.
        device_order: Value of ``CUDA_DEVICE_ORDER``; ``None`` where it is not set.
        num_devices: How many of the visible GPUs the run uses, from the first; ``None``: all.
        host_budget_bytes: What the whole run may hold of the machine's RAM; ``None``: all of it.

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
        host_budget_bytes: int | None = None,
    ) -> None:
        self._nvml = open_nvml()
        self._budget = total_bytes
        self._lock = threading.Lock()
        self._closed = False
        self._warned: set[str] = set()
        try:
            self._host = HostMemory(tenants, host_budget_bytes)
            self.uuids: tuple[str, ...] = select_devices(
                list_devices(self._nvml),
                visible_devices=visible_devices,
                device_order=device_order,
                num_devices=num_devices,
            )
            self._handles = {
                uuid: self._nvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in self.uuids
            }
            self._boards = {
                uuid: parent_of(self._nvml, handle, uuid) for uuid, handle in self._handles.items()
            }
        except self._nvml.NVMLError as error:
            self.release()
            raise MemoryProbeError(f"NVML cannot list the GPUs: {error}; {DOCTOR}") from error
        except BaseException:
            self.release()
            raise

    def sample(self) -> MemorySample:
        """Reads every GPU of the run and returns the one with the least memory free; and the
        run's RAM, this process's and the tenants'.

        Raises:
            MemoryProbeError: the driver no longer answers, or the probe is released.
        """
        host = self._host.read()
        with self._lock:
            if self._closed:
                raise MemoryProbeError("the NVML probe is released; no sample can be taken")
            uuid, used, total = min(
                (self._read(uuid) for uuid in self.uuids),
                key=lambda reading: reading[2] - reading[1],
            )
            tenants = self._tenant_bytes(uuid, host.members)
        if used > total:
            self._warn_once(
                "over",
                "GPU %s reports %d bytes used of %d: none is counted free",
                uuid,
                used,
                total,
            )
        return MemorySample(
            used=used, total=total, tenants=tenants, host_used=host.used, host_free=host.free
        )

    def telemetry(self) -> dict[str, float]:
        """What each GPU of the run tells of itself, by name; what it does not tell is absent.

        ``"gpu0.used_bytes"``, ``"gpu0.free_bytes"``, ``"gpu0.utilization"`` and
        ``"gpu0.memory_utilization"`` (percent), ``"gpu0.temperature_c"``, ``"gpu0.power_w"``; and
        ``"host.available_bytes"``, ``"host.shared_memory_free_bytes"``. GPUs are counted as CUDA
        counts the visible ones. Never raises for a driver's sake: what is lost is warned of once.
        """
        values = self._host.telemetry()
        with self._lock:
            if self._closed:
                return values
            for index, uuid in enumerate(self.uuids):
                for subject, gauge in GAUGES.items():
                    try:
                        read = gauge(self._nvml, self._handles[uuid], self._boards[uuid])
                    except self._nvml.NVMLError as error:
                        self._report_untold(subject, uuid, error)
                        continue
                    values.update((f"gpu{index}.{name}", value) for name, value in read.items())
        return values

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

    def _read(self, uuid: str) -> tuple[str, int, int]:
        try:
            memory = self._nvml.nvmlDeviceGetMemoryInfo(self._handles[uuid])
        except self._nvml.NVMLError as error:
            raise MemoryProbeError(
                f"NVML does not tell the memory of GPU {uuid}: {error}. Remedy: "
                f"{remedy(self._nvml, error)}"
            ) from error
        total = int(memory.total)
        return uuid, int(memory.used), total if self._budget is None else min(total, self._budget)

    def _tenant_bytes(self, uuid: str, members: Mapping[str, frozenset[int]]) -> dict[str, int]:
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
        for name, pids in members.items():
            held = [by_pid[pid] for pid in pids if pid in by_pid]
            known = [num_bytes for num_bytes in held if num_bytes is not None]
            if held and len(known) == len(held):
                tenants[name] = sum(known)
        return tenants

    def _report_untold(self, subject: str, uuid: str, error: Exception) -> None:
        if is_unsupported(self._nvml, error):
            self._warn_once(
                f"no {subject}", "GPU %s does not tell its %s: %s", uuid, subject, error
            )
        else:
            self._warn_once(
                "telemetry",
                "GPU %s did not tell its %s: %s; telemetry leaves out what the driver does not "
                "answer, from now on without a word",
                uuid,
                subject,
                error,
            )

    def _warn_once(self, topic: str, message: str, *values: object) -> None:
        if topic not in self._warned:
            self._warned.add(topic)
            logger.warning(message, *values)
