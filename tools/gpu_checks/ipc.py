"""Another process than the trainer's maps its buckets, as an engine worker does, without vLLM.

On CUDA never run where it was written, which has no GPU.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from pathlib import Path
from typing import Literal

import torch

from colocate.adapters.checksum import tensor_checksum
from colocate.adapters.vllm.buffers import OpenBuffers
from tools.gpu_checks.checks import Checks
from tools.gpu_checks.tenants import Place, guarded_place, make_trainer


def run(checks: Checks, device: str, folder: Path) -> None:
    with guarded_place(device, folder) as place:
        stages: tuple[Literal[1, 2, 3], ...] = (1, 3)
        for zero_stage in stages:
            asyncio.run(_export(checks, place, zero_stage))


async def _export(checks: Checks, place: Place, zero_stage: Literal[1, 2, 3]) -> None:
    trainer = make_trainer(place, zero_stage=zero_stage)
    device = torch.device("cuda:0" if place.device == "cuda" else "cpu")
    kinds, wrong, num_tensors, num_bytes = set(), [], 0, 0
    try:
        await trainer.start()
        buffers = OpenBuffers(device)
        began = time.perf_counter()
        async with aclosing(trainer.export_buckets()) as buckets:
            async for bucket in buckets:
                kinds.add(bucket.handle["kind"])
                mapped = buffers.open(bucket.handle)
                for entry in bucket.entries:
                    data = mapped[entry.offset : entry.offset + entry.num_bytes]
                    num_tensors, num_bytes = num_tensors + 1, num_bytes + entry.num_bytes
                    if tensor_checksum(data) != entry.checksum:
                        wrong.append(entry.name)
                del mapped, data
        buffers.close()
        taken_s = time.perf_counter() - began
    finally:
        await trainer.close()
    checks.check(
        f"ZeRO {zero_stage}",
        not wrong and num_tensors > 0,
        f"{num_tensors - len(wrong)} of {num_tensors} tensors right through {', '.join(kinds)}, "
        f"{num_bytes / taken_s / 1e9:.2f} GB/s with both checksums",
    )
