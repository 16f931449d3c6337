"""What differs between the devices an engine may run on, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from colocate.config import InferenceConfig

Device = Literal["cpu", "cuda"]


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePlatform:
    """Everything else is one code path: sleep, wake and updates go through the same vLLM calls.

    Attributes:
        worker_cls: The worker class by its import path; it answers our calls on every device.
        engine_args: Keyword arguments of ``AsyncEngineArgs`` that this device needs.
        environment: Variables that engine processes see.
    """

    worker_cls: str
    engine_args: Mapping[str, Any]
    environment: Mapping[str, str]


_IN_PROCESS = "vllm.v1.executor.uniproc_executor.UniProcExecutor"
"""The one worker inside the engine's core process. On two cores a worker of its own costs one of
them: the core spins while it waits. vLLM avoids this executor on CPU because OpenMP's settings must
be in the environment before the process starts, which they are."""

_BATCHED_TOKENS = 8192
"""Tokens of one forward pass on CPU, prompts and decoded ones together."""

_COMMON_ENVIRONMENT = {
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}


def engine_platform(
    device: Device,
    config: InferenceConfig,
    threads: int | None,
    devices: Sequence[str] | None = None,
) -> EnginePlatform:
    """The platform for ``device``.

    Args:
        threads: OpenMP threads of all workers together (CPU only); ``None``: one for each CPU
            that this process may use.
        devices: What the engine's processes see as ``CUDA_VISIBLE_DEVICES`` (CUDA only); ``None``:
            what this process sees.
    """
    if device == "cuda":
        return EnginePlatform(
            worker_cls="colocate.adapters.vllm.cuda_worker.ColocatedCUDAWorker",
            engine_args={"enable_sleep_mode": True, "enforce_eager": config.enforce_eager},
            environment={
                **_COMMON_ENVIRONMENT,
                # Said either way: the configuration decides, not the environment of a shell.
                "VLLM_BATCH_INVARIANT": str(int(config.batch_invariant)),
                **({"CUDA_VISIBLE_DEVICES": ",".join(devices)} if devices is not None else {}),
            },
        )
    num_threads = threads or len(os.sched_getaffinity(0))
    per_worker = max(1, num_threads // config.tensor_parallel_size)
    alone = config.tensor_parallel_size == 1
    return EnginePlatform(
        worker_cls="colocate.adapters.vllm.cpu_worker.ColocatedCPUWorker",
        # Compiling for the CPU takes longer than most runs on one, and eager mode with an
        # explicit KV cache lets the worker skip its warm-up.
        engine_args={
            "enforce_eager": True,
            # A prompt that is prefilled in pieces makes vLLM rewind its request's random
            # generator, which torch cannot do on CPU: the worker would die of it.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(config.max_model_len, _BATCHED_TOKENS),
            **({"distributed_executor_backend": _IN_PROCESS} if alone else {}),
        },
        environment={
            **_COMMON_ENVIRONMENT,
            # Threads are counted but not pinned: trainer and environments use the same cores,
            # and pinning to one NUMA node each would refuse tensor parallelism on one.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": str(per_worker),
            # Threads that spin while they wait take the cores from the front end and the
            # environments: the tiny operations of a decoding step then wait for each other.
            "OMP_WAIT_POLICY": "PASSIVE",
            # oneDNN keeps a compiled kernel for every shape it has met, 1024 of them unless told
            # otherwise. Batches come in all sizes, so that is hundreds of MiB, and a residual that
            # grows for hundreds of swaps; fewer kernels take no measurably longer.
            "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64",
        },
    )
