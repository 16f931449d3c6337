"""What a GPU tells for people to see: memory, utilisation, temperature, power."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any


def _memory(nvml: Any, device: Any, _board: Any) -> dict[str, float]:
    memory = nvml.nvmlDeviceGetMemoryInfo(device)
    used, total = int(memory.used), int(memory.total)
    return {"used_bytes": used, "free_bytes": max(0, total - used)}


def _utilization(nvml: Any, _device: Any, board: Any) -> dict[str, float]:
    """Percent of the driver's last period, a sixth to one second, in which a kernel ran and in
    which memory was read or written. A card that is split in MIG instances tells none."""
    rates = nvml.nvmlDeviceGetUtilizationRates(board)
    return {"utilization": rates.gpu, "memory_utilization": rates.memory}


def _temperature(nvml: Any, _device: Any, board: Any) -> dict[str, float]:
    sensor = nvml.NVML_TEMPERATURE_GPU
    try:
        celsius = nvml.nvmlDeviceGetTemperatureV(board, sensor)
    except nvml.NVMLError_FunctionNotFound:  # drivers before R570
        celsius = nvml.nvmlDeviceGetTemperature(board, sensor)
    return {"temperature_c": celsius}


def _power(nvml: Any, _device: Any, board: Any) -> dict[str, float]:
    return {"power_w": nvml.nvmlDeviceGetPowerUsage(board) / 1000}


GAUGES: Mapping[str, Callable[[Any, Any, Any], dict[str, float]]] = {
    "memory": _memory,
    "utilization": _utilization,
    "temperature": _temperature,
    "power": _power,
}
"""By subject: a question to NVML about a device and the card that it is, or is a slice of.

Each answers with values by name, or raises ``NVMLError``. Utilisation, temperature and power are
of the whole card.
"""
