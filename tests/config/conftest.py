from __future__ import annotations

import pytest

from colocate import machine
from colocate.machine import Gpu, Gpus
from colocate.preflight import machine as machine_rules
from colocate.preflight import memory as memory_rules

GPU_BYTES = 10_000_000_000


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of ``GPU_BYTES`` each."""
    gpus = Gpus(
        devices=(Gpu(uuid="GPU-a", name="H200"), Gpu(uuid="GPU-b", name="H200")),
        smallest_bytes=GPU_BYTES,
    )
    for module in (machine, machine_rules, memory_rules):
        monkeypatch.setattr(module, "read_gpus", lambda environment: gpus)
