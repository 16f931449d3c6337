"""NVIDIA's management library: opened, its devices listed, its errors explained."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import Any

from colocate.adapters.memory.errors import MemoryProbeError
from colocate.adapters.memory.visible_devices import Device

DOCTOR = "`colocate doctor` shows what this machine has"


def open_nvml() -> Any:
    """Imports and initialises NVML's Python binding, and proves that it is NVIDIA's own.

    Raises:
        MemoryProbeError: another package of its name, no library, or no driver.
    """
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
            f"libnvidia-ml.so.1 (in a container: the NVIDIA container toolkit); {DOCTOR}. "
            "device=cpu runs without"
        ) from error
    return pynvml


def list_devices(nvml: Any) -> list[Device]:
    """All GPUs in the order of the bus, each followed by the MIG instances it is split into.

    In a container only those that were given to it.

    Raises:
        NVMLError: the driver does not answer.
    """
    devices: list[Device] = []
    for index in range(nvml.nvmlDeviceGetCount()):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = nvml.nvmlDeviceGetUUID(handle)
        split = _is_split(nvml, handle)
        devices.append(Device(uuid=uuid, name=nvml.nvmlDeviceGetName(handle), split=split))
        if split:
            devices.extend(_list_instances(nvml, handle, uuid))
    return devices


def parent_of(nvml: Any, handle: Any, uuid: str) -> Any:
    """Handle of the GPU that an instance is a slice of; of a GPU its own.

    Raises:
        NVMLError: the driver does not answer.
    """
    if uuid.startswith("MIG-"):
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
    return handle


def is_unsupported(nvml: Any, error: Exception) -> bool:
    """Whether a GPU or a driver of this kind never answers that question, as opposed to failed."""
    return error.value in (  # type: ignore[attr-defined]
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        nvml.NVML_ERROR_NO_PERMISSION,
    )


def remedy(nvml: Any, error: Exception) -> str:
    """What a person can do about an error in the middle of a run."""
    code = error.value  # type: ignore[attr-defined]
    if code == nvml.NVML_ERROR_NOT_SUPPORTED:
        return (
            "this GPU does not report memory of its own, as those that share the machine's RAM; "
            "it cannot be run on"
        )
    remedies = {
        nvml.NVML_ERROR_GPU_IS_LOST: "the GPU fell off the bus; `dmesg` shows the Xid error. "
        "Reset it (`nvidia-smi --gpu-reset`) or reboot",
        nvml.NVML_ERROR_RESET_REQUIRED: "the GPU must be reset (`nvidia-smi --gpu-reset`)",
        nvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "the driver was upgraded under the run; reboot, "
        "or load the new kernel module",
        nvml.NVML_ERROR_DRIVER_NOT_LOADED: "the driver was unloaded; load it (`modprobe nvidia`)",
        nvml.NVML_ERROR_UNKNOWN: "in a container this follows a `systemctl daemon-reload` on the "
        "host, which takes the GPUs away from it; start the container anew. Else see `dmesg`",
    }
    cause = remedies.get(code, "`dmesg` shows what the driver says of it")
    return f"{cause}, then resume from the last checkpoint"


def _is_split(nvml: Any, handle: Any) -> bool:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError as error:
        if is_unsupported(nvml, error):
            return False
        raise
    return bool(current == nvml.NVML_DEVICE_MIG_ENABLE)


def _list_instances(nvml: Any, gpu: Any, gpu_uuid: str) -> list[Device]:
    instances: list[Device] = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
        except nvml.NVMLError_NotFound:
            continue  # a place for an instance that nobody made
        place = (
            nvml.nvmlDeviceGetGpuInstanceId(handle),
            nvml.nvmlDeviceGetComputeInstanceId(handle),
        )
        instances.append(
            Device(
                uuid=nvml.nvmlDeviceGetUUID(handle),
                name=nvml.nvmlDeviceGetName(handle),
                parent=gpu_uuid,
                old_name=f"MIG-{gpu_uuid}/{place[0]}/{place[1]}",
            )
        )
    return instances
