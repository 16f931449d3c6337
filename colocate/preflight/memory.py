"""Rules of memory: what cannot fit is refused before anything is loaded.

All needs are lower bounds, of what is known without loading a model: weights, KV cache, the
trainer's state. Activations, graphs and communication buffers come on top, and are measured.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from colocate.adapters.memory.host import usable_ram_bytes
from colocate.adapters.memory.shared_memory import (
    SHARED_MEMORY,
    SharedMemoryError,
    read_shared_memory,
)
from colocate.config import DEFAULT_BUCKET_BYTES
from colocate.machine import DeviceChoice, read_gpus, resolve_device
from colocate.preflight.lora import num_elements
from colocate.preflight.model_size import model_size
from colocate.preflight.table import rule
from colocate.problems import Problem

_ITEM_BYTES = {"float32": 4, "bfloat16": 2}

_Elements = tuple[int, int]
"""Of all of the trainer's parameters, and of those that are trained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TrainerState:
    """Bytes of all ranks together, after Rajbhandari et al. 2020 (ZeRO), section 3.1.

    Adam keeps 12 bytes a parameter in float32: master weight and two moments. Stage 0 trains
    the master weights themselves. What a stage does not divide, each rank holds whole. Gradients
    and optimizer state are of the parameters that are trained: with ``model.lora``, of adapters.
    """

    parameters: int
    gradients: int
    optimizer: int

    @classmethod
    def of(cls, elements: _Elements, dtype: str, *, stage: int, num_ranks: int) -> _TrainerState:
        num_parameters, num_trained = elements
        item = _ITEM_BYTES[dtype]
        return cls(
            parameters=num_parameters * item * (1 if stage >= 3 else num_ranks),
            gradients=num_trained * item * (1 if stage >= 2 else num_ranks),
            optimizer=num_trained * (8 * num_ranks if stage == 0 else 12),
        )


@rule(
    "device",
    "model.path",
    "model.embedded",
    "model.dtype",
    "model.lora",
    "inference.num_engines",
    "inference.tensor_parallel_size",
    "inference.kv_cache_memory_bytes",
    "trainer.zero_stage",
    "trainer.num_ranks",
    "trainer.dtype",
    "memory.budget_bytes",
    "memory.margin_bytes",
)
def _kv_cache_fits(
    device: DeviceChoice,
    path: str | None,
    embedded: Mapping[str, Any] | None,
    dtype: str,
    lora: Mapping[str, Any] | None,
    num_engines: int,
    tensor_parallel_size: int,
    kv_cache_bytes: int,
    stage: int,
    num_ranks: int,
    train_dtype: str | None,
    budget_bytes: int | None,
    margin_bytes: int,
) -> Iterator[Problem]:
    """The awake engine, beside what of the trainer can never leave.

    A GPU holds one worker. On CPU the device is the host: all workers share it, and the trainer's
    state stays.
    """
    size = model_size(path, embedded)
    weights = 0 if size is None else size.parameters * _ITEM_BYTES[dtype]
    on_cpu = resolve_device(device, os.environ) == "cpu"
    if on_cpu:
        num_caches = num_engines * tensor_parallel_size
        weights *= num_engines
        state = _TrainerState.of(
            num_elements(path, embedded, lora) or (0, 0),
            train_dtype or dtype,
            stage=stage,
            num_ranks=num_ranks,
        )
        trainer = state.parameters + state.optimizer
    else:
        num_caches, trainer = 1, 0
        weights //= tensor_parallel_size
    limit, name = _device_limit(budget_bytes, on_cpu=on_cpu)
    beside = weights + trainer + margin_bytes
    if limit and num_caches * kv_cache_bytes + beside >= limit:
        parts = [f"{num_caches} KV caches"] if num_caches > 1 else []
        parts += [f"weights of {weights} bytes"] if weights else []
        parts += [f"the trainer's state of {trainer} bytes"] if trainer else []
        parts += [f"memory.margin_bytes = {margin_bytes}"]
        most = (limit - beside - 1) // num_caches
        raise_it = f"raise {name}" if budget_bytes is not None else "take a smaller model"
        yield Problem(
            field="inference.kv_cache_memory_bytes",
            value=kv_cache_bytes,
            rule=f"with {', '.join(parts)} must be below {name} = {limit}",
            remedy=f"set inference.kv_cache_memory_bytes={most} or less, or {raise_it}"
            if most > 0
            else f"{raise_it}: nothing is left for a KV cache",
        )


@rule(
    "device",
    "model.path",
    "model.embedded",
    "model.dtype",
    "model.lora",
    "trainer.zero_stage",
    "trainer.num_ranks",
    "trainer.dtype",
    "trainer.deepspeed",
    "memory.budget_bytes",
    "memory.margin_bytes",
)
def _trainer_fits_the_gpu(
    device: DeviceChoice,
    path: str | None,
    embedded: Mapping[str, Any] | None,
    dtype: str,
    lora: Mapping[str, Any] | None,
    stage: int,
    num_ranks: int,
    train_dtype: str | None,
    deepspeed: Mapping[str, Any],
    budget_bytes: int | None,
    margin_bytes: int,
) -> Iterator[Problem]:
    elements = num_elements(path, embedded, lora)
    if elements is None or resolve_device(device, os.environ) == "cpu":
        return
    state = _TrainerState.of(elements, train_dtype or dtype, stage=stage, num_ranks=num_ranks)
    optimizer = 0 if _optimizer_stays_on_host(deepspeed) else state.optimizer
    needed = (state.parameters + state.gradients + optimizer) // num_ranks
    limit, name = _device_limit(budget_bytes, on_cpu=False)
    if limit and needed + margin_bytes >= limit:
        yield Problem(
            field="trainer.num_ranks",
            value=num_ranks,
            rule=f"parameters, gradients and optimizer state of ZeRO {stage} take {needed} bytes "
            f"of each of {num_ranks} GPUs; with memory.margin_bytes = {margin_bytes} that must "
            f"be below {name} = {limit}",
            remedy="raise trainer.num_ranks or trainer.zero_stage",
        )


@rule(
    "device",
    "model.path",
    "model.embedded",
    "model.dtype",
    "model.lora",
    "inference.num_engines",
    "inference.tensor_parallel_size",
    "inference.kv_cache_memory_bytes",
    "inference.sleep",
    "trainer.zero_stage",
    "trainer.num_ranks",
    "trainer.dtype",
    "memory.host_budget_bytes",
)
def _host_holds_what_leaves_the_device(
    device: DeviceChoice,
    path: str | None,
    embedded: Mapping[str, Any] | None,
    dtype: str,
    lora: Mapping[str, Any] | None,
    num_engines: int,
    tensor_parallel_size: int,
    kv_cache_bytes: int,
    sleep: str | int,
    stage: int,
    num_ranks: int,
    train_dtype: str | None,
    budget_bytes: int | None,
) -> Iterator[Problem]:
    """The trainer's state, all of which leaves in the first swap; and weights kept by level 1.

    On CPU, where the device is the host, the engine with its KV cache instead of the latter.
    """
    size, elements = model_size(path, embedded), num_elements(path, embedded, lora)
    if size is None or elements is None:
        return
    on_cpu = resolve_device(device, os.environ) == "cpu"
    if on_cpu and budget_bytes is None:
        return  # the rule of the KV cache, which is told the same memory
    state = _TrainerState.of(elements, train_dtype or dtype, stage=stage, num_ranks=num_ranks)
    trainer = state.parameters + state.optimizer
    weights = num_engines * size.parameters * _ITEM_BYTES[dtype] if on_cpu or sleep == 1 else 0
    caches = num_engines * tensor_parallel_size * kv_cache_bytes if on_cpu else 0
    limit = budget_bytes if budget_bytes is not None else usable_ram_bytes()
    if trainer + weights + caches < limit:
        return
    parts = [f"the trainer's state ({trainer} bytes)"]
    parts += [f"the engine's weights ({weights} bytes)"] if weights else []
    parts += [f"its KV cache ({caches} bytes)"] if caches else []
    name = "memory.host_budget_bytes" if budget_bytes is not None else "this machine's RAM"
    yield Problem(
        field="memory.host_budget_bytes",
        value=budget_bytes,
        rule=f"must be above what RAM has to hold, {' and '.join(parts)}: "
        f"{trainer + weights + caches} bytes, and {name} is {limit}",
        remedy=("set inference.sleep=2, which keeps no weights in RAM; or " if sleep == 1 else "")
        + ("raise memory.host_budget_bytes" if budget_bytes is not None else "add RAM")
        + (", or set trainer.zero_stage=3" if stage < 3 and num_ranks > 1 else ""),
    )


@rule("device", "model.path", "model.embedded", "model.dtype", "trainer.publish_bucket_bytes")
def _buckets_fit_shared_memory(
    device: DeviceChoice,
    path: str | None,
    embedded: Mapping[str, Any] | None,
    dtype: str,
    bucket_bytes: int | None,
) -> Iterator[Problem]:
    """On CPU weights pass through it, in two buckets at a time.

    A tensor that is larger than a bucket is a bucket of its own. Buckets take turns in two slots,
    each as large as the largest that it is given: at most, those of the two largest tensors.
    """
    if resolve_device(device, os.environ) != "cpu":
        return
    size = model_size(path, embedded)
    bucket = bucket_bytes or DEFAULT_BUCKET_BYTES["cpu"]
    largest = second = 0
    if size is not None:
        largest, second = (elements * _ITEM_BYTES[dtype] for elements in size.largest)
    needed = max(bucket, largest) + max(bucket, second)
    if size is not None:
        needed = min(needed, size.parameters * _ITEM_BYTES[dtype])
    try:
        free = read_shared_memory().free
    except SharedMemoryError as error:
        yield Problem(
            field="trainer.publish_bucket_bytes",
            value=bucket_bytes,
            rule=f"needs shared memory: {error}",
            remedy=f"mount {SHARED_MEMORY}; a container has it unless told otherwise",
        )
        return
    if free < needed:
        room = min(free // 2, free - largest)
        helps = room > 0 and second <= room
        lower = f"set trainer.publish_bucket_bytes={room}, or " if helps else ""
        yield Problem(
            field="trainer.publish_bucket_bytes",
            value=bucket_bytes,
            rule=f"a publication needs {needed} bytes of {SHARED_MEMORY}, which has {free} free",
            remedy=f"{lower}enlarge it (docker run --shm-size), or delete what ended runs left",
        )


def _device_limit(budget_bytes: int | None, *, on_cpu: bool) -> tuple[int, str]:
    """Zero where it cannot be known: another rule refuses a device that is not there."""
    if budget_bytes is not None:
        return budget_bytes, "memory.budget_bytes"
    if on_cpu:
        return usable_ram_bytes(), "this machine's RAM"
    return read_gpus(os.environ).smallest_bytes, "the GPU's memory"


def _optimizer_stays_on_host(deepspeed: Mapping[str, Any]) -> bool:
    zero = deepspeed.get("zero_optimization")
    offload = zero.get("offload_optimizer") if isinstance(zero, Mapping) else None
    return isinstance(offload, Mapping) and offload.get("device") not in (None, "none")
