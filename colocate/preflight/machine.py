"""Rules of what the run takes of this machine: devices, memory, processes, deadlines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

from colocate.machine import DeviceChoice, num_cores, read_gpus, resolve_device
from colocate.preflight.table import rule
from colocate.problems import Problem


@rule("model.path", "model.embedded")
def _one_model(path: str | None, embedded: Mapping[str, Any] | None) -> Iterator[Problem]:
    if (path is None) == (embedded is None):
        both = "both are" if path is not None else "neither is"
        yield Problem(
            field="model.path",
            value=path,
            rule=f"exactly one of model.path and model.embedded must be given; {both}",
            remedy="choose model=hf with model.path=FOLDER_OR_NAME, or model=embedded",
        )


@rule(
    "model.embedded.num_attention_heads",
    "model.embedded.num_key_value_heads",
    "inference.tensor_parallel_size",
)
def _embedded_heads_divide(
    num_heads: int, num_key_value_heads: int, tensor_parallel_size: int
) -> Iterator[Problem]:
    if num_heads % num_key_value_heads:
        yield Problem(
            field="model.embedded.num_attention_heads",
            value=num_heads,
            rule=f"must be a multiple of num_key_value_heads = {num_key_value_heads}",
            remedy="change one of the two",
        )
    if num_heads % tensor_parallel_size:
        yield Problem(
            field="inference.tensor_parallel_size",
            value=tensor_parallel_size,
            rule=f"must divide model.embedded.num_attention_heads = {num_heads}",
            remedy="set inference.tensor_parallel_size=1",
        )


@rule("device", "trainer.num_ranks", "inference.num_engines", "inference.tensor_parallel_size")
def _devices_suffice(
    device: DeviceChoice, num_ranks: int, num_engines: int, tensor_parallel_size: int
) -> Iterator[Problem]:
    if resolve_device(device, os.environ) == "cpu":
        if tensor_parallel_size > num_cores():
            yield Problem(
                field="inference.tensor_parallel_size",
                value=tensor_parallel_size,
                rule=f"must be at most {num_cores()}, the cores that this process may use: the "
                "workers of an engine wait for each other in every layer",
                remedy="set inference.tensor_parallel_size=1",
            )
        return
    gpus = read_gpus(os.environ)
    if not gpus.devices:
        yield Problem(
            field="device",
            value=device,
            rule=f"needs a GPU; {gpus.reason}",
            remedy="set device=cpu, or see `colocate doctor`",
        )
        return
    num_gpus = len(gpus.devices)
    num_workers = num_engines * tensor_parallel_size
    too_many = False
    for field, value in (
        ("trainer.num_ranks", num_ranks),
        ("inference.tensor_parallel_size", tensor_parallel_size),
    ):
        if value > num_gpus:
            too_many = True
            yield Problem(
                field=field,
                value=value,
                rule=f"must be at most {num_gpus}, the GPUs that are visible",
                remedy=f"set {field}={num_gpus}, or make more GPUs visible",
            )
    if too_many:
        return
    if num_workers > num_gpus:
        most = num_gpus // tensor_parallel_size
        yield Problem(
            field="inference.num_engines",
            value=num_engines,
            rule=f"times inference.tensor_parallel_size = {tensor_parallel_size} must be at most "
            f"{num_gpus}, the GPUs that are visible",
            remedy=f"set inference.num_engines={most}, or make more GPUs visible",
        )
    elif num_ranks < num_workers:
        yield Problem(
            field="trainer.num_ranks",
            value=num_ranks,
            rule=f"must be at least inference.num_engines x inference.tensor_parallel_size = "
            f"{num_workers}: weights pass by CUDA IPC, within a GPU, so each GPU of an engine "
            "needs a rank of the trainer",
            remedy=f"set trainer.num_ranks={num_workers}, or use fewer GPUs for engines",
        )


@rule("device", "inference.sleep")
def _allocator_allows_sleep(device: DeviceChoice, sleep: str | int) -> Iterator[Problem]:
    setting = allocator_setting(os.environ)
    if sleep != 0 and setting is not None and resolve_device(device, os.environ) == "cuda":
        yield Problem(
            field="inference.sleep",
            value=sleep,
            rule=f"cannot work with {setting}=expandable_segments: vLLM's sleep needs a memory "
            "pool of its own",
            remedy=f"take expandable_segments out of {setting}, or set inference.sleep=0",
        )


_EXPANDABLE_SEGMENTS = re.compile(r"(?:^|,)\s*expandable_segments\s*:\s*(?:true|1)\s*(?:,|$)", re.I)


def allocator_setting(environment: Mapping[str, str]) -> str | None:
    """The environment variable that asks torch for expandable segments, if one does.

    torch reads the first that is set, and vLLM's checks the second, so both count.
    """
    for name in ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"):
        if _EXPANDABLE_SEGMENTS.search(environment.get(name, "")):
            return name
    return None


@rule("environment.latency.median_s", "environment.latency.cap_s", "environment.latency.kind")
def _latency_cap_above_median(median_s: float, cap_s: float, kind: str) -> Iterator[Problem]:
    if kind == "lognormal" and cap_s < median_s:
        yield Problem(
            field="environment.latency.cap_s",
            value=cap_s,
            rule=f"must be at least environment.latency.median_s = {median_s}",
            remedy="raise the cap or lower the median",
        )


@rule("environment.step_timeout_s", "supervision.idle_timeout_s")
def _a_slow_step_is_not_idleness(step_timeout_s: float, idle_timeout_s: float) -> Iterator[Problem]:
    if idle_timeout_s <= step_timeout_s:
        yield Problem(
            field="supervision.idle_timeout_s",
            value=idle_timeout_s,
            rule=f"must be above environment.step_timeout_s = {step_timeout_s}, or a run that "
            "waits for one slow step is ended as idle",
            remedy=f"set supervision.idle_timeout_s={2 * step_timeout_s:g}",
        )
