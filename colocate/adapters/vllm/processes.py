"""The engine's processes: making them, naming them, and seeing them gone."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from colocate.adapters.exit_status import describe_status
from colocate.adapters.vllm.platform import EnginePlatform
from colocate.adapters.vllm.plugin import TRANSFER_BACKEND
from colocate.adapters.vllm.spawn import engine_spawning, first_error
from colocate.config import InferenceConfig
from colocate.ports import EngineLostError

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

EXIT_GRACE_S = 10.0
"""From the order to shut down until processes are killed."""


_ENDED_BY_SIGNAL = re.compile(r"Failed core proc\(s\): \{[^}]*: -\d+")


class EngineDiedError(EngineLostError):
    """The engine's core ended without having been told to. Names how, and its log."""


def make_engine(
    model_path: str,
    config: InferenceConfig,
    *,
    dtype: str,
    seed: int,
    platform: EnginePlatform,
    log_file: Path,
    run_id: str,
) -> AsyncLLM:
    """Starts core and workers; blocks until they are ready. The calling thread must outlive them.

    Raises:
        Exception: vLLM's; what its processes have to say is in ``log_file``.
    """
    with engine_spawning(log_file=log_file, run_id=run_id, environment=platform.environment):
        os.environ["VLLM_CONFIGURE_LOGGING"] = "0"
        from vllm.config import LoggingConfig, WeightTransferConfig
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        return AsyncLLM.from_engine_args(
            AsyncEngineArgs(
                model=model_path,
                dtype=dtype,
                seed=seed,
                tensor_parallel_size=config.tensor_parallel_size,
                max_model_len=config.max_model_len,
                max_num_seqs=config.max_num_seqs,
                kv_cache_memory_bytes=config.kv_cache_memory_bytes,
                enable_prefix_caching=True,
                # The trainer divides by the temperature too, so the engine must report
                # probabilities of what it sampled from.
                logprobs_mode="processed_logprobs",
                max_logprobs=1,
                generation_config="vllm",
                # What vLLM takes from a model's configuration, and so can only be overridden there.
                hf_overrides={"head_dtype": "float32"} if config.fp32_head else {},
                weight_transfer_config=WeightTransferConfig(backend=TRANSFER_BACKEND),
                worker_cls=platform.worker_cls,
                logging_config=LoggingConfig(configure_logging=False),
                disable_log_stats=True,
                **{**platform.engine_args, **config.engine_args},
            )
        )


async def abandon(
    starting: asyncio.Future[None], bystanders: set[multiprocessing.process.BaseProcess]
) -> None:
    """Ends a start that nobody waits for any more: its processes are killed until vLLM gives up."""
    while not starting.done():
        for process in set(multiprocessing.active_children()) - bystanders:
            process.kill()
        await asyncio.wait({starting}, timeout=0.1)
    starting.exception()


def core_and_descendants(engine: AsyncLLM) -> list[psutil.Process]:
    """The engine's live processes, its core first."""
    found: list[psutil.Process] = []
    for core in engine.engine_core.resources.engine_manager.processes:
        try:
            process = psutil.Process(core.pid)
            found += [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return [process for process in found if is_alive(process)]


def death_of(
    engine: AsyncLLM, processes: Sequence[psutil.Process], log_file: Path, log_start: int
) -> EngineDiedError:
    """What is to be said of an engine that vLLM calls dead.

    Args:
        processes: Its core and workers, as they were started.
        log_file: Of the engine.
        log_start: The byte from which on its log tells of its life.
    """
    ends = [
        f"process {process.pid} {describe_status(process.exitcode)}"
        for process in engine.engine_core.resources.engine_manager.processes
        if process.exitcode is not None
    ]
    # How a worker ended only its parent, the core, was told.
    if not ends:
        ends = [f"process {p.pid} has ended" for p in processes if not is_alive(p)]
    cause = first_error(log_file, log_start)
    if cause is not None and not cause.startswith("EngineDeadError"):
        ends.append(cause)
    return EngineDiedError(
        f"vLLM's engine died: {'; '.join(ends) or 'no cause known'}; see {log_file}"
    )


def was_killed(error: BaseException) -> bool:
    """Whether vLLM gave up a start since a process of it was ended by a signal.

    Its message has the exit codes of what failed: ``Failed core proc(s): {'EngineCore_0': -9}``.
    """
    return isinstance(error, EngineLostError) or bool(_ENDED_BY_SIGNAL.search(str(error)))


def is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def shut_down(engine: AsyncLLM) -> None:
    """Ends the engine in order, then by force.

    Raises:
        RuntimeError: where a process survives being killed.
    """
    processes = core_and_descendants(engine)
    engine.shutdown(timeout=EXIT_GRACE_S)
    _, lingering = psutil.wait_procs(processes, timeout=EXIT_GRACE_S)
    for process in filter(is_alive, lingering):
        process.kill()
    _, surviving = psutil.wait_procs(lingering, timeout=EXIT_GRACE_S)
    surviving = [process for process in surviving if is_alive(process)]
    if surviving:
        raise RuntimeError(f"close: processes {[p.pid for p in surviving]} survive SIGKILL")
