"""Every device gives one checksum for the same bytes."""

from __future__ import annotations

import time
from pathlib import Path

import torch

from colocate.adapters.checksum import tensor_checksum
from tools.gpu_checks.checks import Checks

SHAPES = ((1,), (7,), (1024, 1024), (3, 5, 11), (4099,), (20_011, 64))
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.uint8, torch.int64)
TIMED_BYTES = 2**28


def run(checks: Checks, device: str, folder: Path) -> None:
    torch.manual_seed(0)
    wrong = []
    count = 0
    for dtype in DTYPES:
        for shape in SHAPES:
            tensor = (torch.randn(shape) * 100).to(dtype)
            there = tensor.to(device)
            # Permuted and cut: neither contiguous nor aligned, so that copies are taken.
            for here, other in (
                (tensor, there),
                (tensor.movedim(0, -1), there.movedim(0, -1)),
                (tensor[1:], there[1:]),
            ):
                count += 1
                if tensor_checksum(here) != tensor_checksum(other):
                    wrong.append(f"{dtype} {tuple(here.shape)}")
    checks.check(
        "equal to CPU",
        not wrong,
        f"{count - len(wrong)} of {count} tensors" + (f"; not {wrong[:3]}" if wrong else ""),
    )
    changed = torch.zeros(1_000_003, dtype=torch.uint8, device=device)
    before = tensor_checksum(changed)
    changed[999_999] = 1
    checks.check("one byte changes it", tensor_checksum(changed) != before, "of 1,000,003")
    data = torch.ones(TIMED_BYTES, dtype=torch.uint8, device=device)
    tensor_checksum(data)
    began = time.perf_counter()
    tensor_checksum(data)
    rate = TIMED_BYTES / (time.perf_counter() - began)
    checks.check("speed", True, f"{rate / 1e9:.1f} GB/s over {TIMED_BYTES >> 20} MiB")
