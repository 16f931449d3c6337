"""Rules of what keeps the engine's probabilities near the trainer's."""

from __future__ import annotations

import os
from collections.abc import Iterator

from colocate.machine import DeviceChoice, resolve_device
from colocate.preflight.table import rule
from colocate.problems import Problem


@rule("inference.fp32_head", "model.dtype")
def _a_float32_head_differs_from_its_model(fp32_head: bool, dtype: str) -> Iterator[Problem]:
    if fp32_head and dtype == "float32":
        yield Problem(
            field="inference.fp32_head",
            value=fp32_head,
            rule="must be false with model.dtype=float32, whose output head computes in float32 "
            "already",
            remedy="set inference.fp32_head=false, or model.dtype=bfloat16",
        )


@rule("device", "inference.batch_invariant")
def _batch_invariance_needs_a_gpu(device: DeviceChoice, batch_invariant: bool) -> Iterator[Problem]:
    if batch_invariant and resolve_device(device, os.environ) == "cpu":
        yield Problem(
            field="inference.batch_invariant",
            value=batch_invariant,
            rule="must be false on CPU: vLLM has batch-invariant kernels for GPUs only",
            remedy="set inference.batch_invariant=false; in float32, batches change "
            "log-probabilities by some 1e-6 here",
        )
