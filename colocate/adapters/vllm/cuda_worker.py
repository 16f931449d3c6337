"""The engine worker on a GPU: vLLM's own sleep mode, plus a report of what it holds.

Has not been run on the machine it was written on, which has no GPU.
"""

from __future__ import annotations

import gc

import torch
from vllm.device_allocator import get_mem_allocator_instance
from vllm.v1.worker.gpu_worker import Worker

from colocate.adapters.vllm.worker import ColocatedWorker


class ColocatedCUDAWorker(ColocatedWorker, Worker):  # type: ignore[misc]
    """Memory outside vLLM's sleeping allocator (communicators, graphs) is not counted here.

    The memory probe counts it; this report only tells which tags are mapped.
    """

    def residency(self) -> dict[str, int]:
        held = {"weights": 0, "kv_cache": 0}
        for allocation in get_mem_allocator_instance().pointer_to_data.values():
            if allocation.tag in held and not allocation.is_asleep:
                held[allocation.tag] += allocation.handle[1]
        return held

    def collect_garbage(self) -> None:
        """Returns cached blocks of the device, and pinned host memory that level 1 has used."""
        gc.collect()
        torch.accelerator.empty_cache()
        torch.accelerator.empty_host_cache()
