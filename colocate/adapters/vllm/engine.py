"""The ``Inference`` port over vLLM's ``AsyncLLM``.

Who may generate when, and what keeps it true::

    generate ----> [submitting] --add_request--> engine process --> result
                        |                             ^
    park:  close the door, let submissions through, --+-- pause_generation("abort")
           so that every request is either aborted by the engine or was never sent
    sleep(2) / begin_weight_update:  weights are no version's; generate raises
    finish_weight_update:            weights are a version's again, caches reset
    wake("kv_cache"):                KV mapped, prefix cache reset, door open
"""

from __future__ import annotations

import asyncio
import dataclasses
import gc
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from colocate.adapters.vllm.liveness import MortalEngine, fails_with_the_engine
from colocate.adapters.vllm.platform import Device, engine_platform
from colocate.adapters.vllm.processes import (
    EngineDiedError,
    abandon,
    core_and_descendants,
    make_engine,
    shut_down,
    was_killed,
)
from colocate.adapters.vllm.prompt_scores import score_prompts
from colocate.adapters.vllm.residency import EngineResidency
from colocate.adapters.vllm.spawn import first_error, vllm_logging_to
from colocate.config import InferenceConfig
from colocate.core.types import FinishReason, Part, SleepMode, Version
from colocate.ports import Generation, GenerationRequest, WakeTag, WeightBucket

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_ABORT_DEADLINE_S = 60.0
"""For results that the engine has already sent; passing it means that one was lost."""


class VllmInference(MortalEngine):
    """One engine: a front end in this process, its core and workers in processes of their own.

    Args:
        model_path: Hugging Face model folder or hub name.
        config: Section ``inference`` of the run's configuration.
        dtype: torch's name of the weights' type.
        device: Where the workers run.
        seed: Of the engine; requests bring their own.
        log_file: Takes all that vLLM has to say, in this process and in its own.
        run_id: Marks the engine's processes (``COLOCATE_RUN_ID``).
        threads: OpenMP threads of the workers (CPU); ``None``: all CPUs.
        devices: Indices or UUIDs of the GPUs it may use (CUDA); ``None``: all that are visible.
    """

    def __init__(
        self,
        model_path: Path | str,
        config: InferenceConfig,
        *,
        dtype: str,
        device: Device,
        seed: int,
        log_file: Path,
        run_id: str,
        threads: int | None = None,
        devices: Sequence[str] | None = None,
    ) -> None:
        super().__init__(log_file)
        self._model_path = str(model_path)
        self._config = config
        self._dtype = dtype
        self._seed = seed
        self._run_id = run_id
        self._platform = engine_platform(device, config, threads, devices)
        self._resources = ExitStack()
        self._parked = False
        self._memory = EngineResidency(host_is_device=device == "cpu")
        self._unusable: str | None = None
        self._version: Version | None = None
        self._pending: set[asyncio.Future[None]] = set()
        self._submitting: set[asyncio.Future[None]] = set()

    async def start(self) -> None:
        """Starts the engine, awake and warm, at version 0.

        Raises:
            RuntimeError: where it is running already, or cannot start; then with the first error
                of its processes, which are gone.
            EngineDiedError: a signal ended a process of it before it had anything to say.
        """
        if self._engine is not None:
            raise RuntimeError("start: the engine is running already")
        self._log_file.parent.mkdir(parents=True, exist_ok=True)
        self._log_file.touch()
        self._log_start = self._log_file.stat().st_size
        self._resources.enter_context(vllm_logging_to(self._log_file))
        # The kernel ties the engine's life to the *thread* that starts it, so that thread stays.
        starter = self._resources.enter_context(ThreadPoolExecutor(1, "engine-starter"))
        bystanders = set(multiprocessing.active_children())
        starting = asyncio.get_running_loop().run_in_executor(starter, self._start_blocking)
        try:
            try:
                await asyncio.shield(starting)
            except asyncio.CancelledError:
                await abandon(starting, bystanders)
                raise
            await self._set_version(Version(0))
            await self._warm_up()
        except Exception as error:
            reported = first_error(self._log_file, self._log_start)
            cause = reported or f"{type(error).__name__}: {error}"
            await self.close()
            if reported is None and was_killed(error):
                raise EngineDiedError(f"the engine was killed as it started: {cause}") from error
            raise RuntimeError(
                f"the engine did not start: {cause}; see {self._log_file}"
            ) from error
        except BaseException:
            await self.close()
            raise

    async def generate(self, request: GenerationRequest) -> Generation:
        """Runs one request to its end or to the next park; parked already, returns it untouched.

        Raises:
            ValueError: for a prompt without a token, or without room for one more.
            RuntimeError: where the weights are not those of any version, and for a result that
                cannot be vouched for.
            EngineDiedError: where the engine has died; so does every method below.
        """
        from vllm.v1.engine.exceptions import EngineDeadError

        from colocate.adapters.vllm.sampling import generation, sampling_params

        engine = self._running()
        if not 1 <= len(request.prompt_token_ids) < self._config.max_model_len:
            raise ValueError(
                f"request {request.request_id}: its prompt must have 1 to "
                f"{self._config.max_model_len - 1} tokens (inference.max_model_len), has "
                f"{len(request.prompt_token_ids)}"
            )
        if self._unusable is not None:
            raise RuntimeError(
                f"generate: the engine's weights cannot be served: {self._unusable}; publish a "
                "whole set first"
            )
        if self._parked:
            return Generation(
                request_id=request.request_id,
                token_ids=(),
                logprobs=(),
                spans=(),
                finish_reason=FinishReason.ABORT,
            )
        with _tracked_in(self._pending):
            try:
                with _tracked_in(self._submitting):
                    queue = await engine.add_request(
                        request.request_id,
                        {"type": "token", "prompt_token_ids": list(request.prompt_token_ids)},
                        sampling_params(request),
                    )
                output = queue.get_nowait() or await queue.get()
            except asyncio.CancelledError:
                # Shielded: a second cancellation must not leave the engine generating for nobody.
                with suppress(EngineDeadError):
                    await asyncio.shield(engine.abort(request.request_id))
                raise
            except EngineDeadError as error:
                raise self._death_of(engine) from error
            return generation(request.request_id, output)

    @fails_with_the_engine
    async def park(self) -> None:
        """Aborts all requests in flight and returns when each has its partial result.

        The prefix cache is kept: without a version change it is still true, and what changes the
        version or drops the KV cache resets it.

        Raises:
            RuntimeError: where a request has no result although the engine is idle.
        """
        engine = self._running()
        self._parked = True
        # A request still on its way would reach a paused engine and wait there for ever.
        if self._submitting:
            await asyncio.wait(set(self._submitting))
        await engine.pause_generation(mode="abort", clear_cache=False)
        if self._pending:
            _, lost = await asyncio.wait(set(self._pending), timeout=_ABORT_DEADLINE_S)
            if lost:
                raise RuntimeError(f"park: {len(lost)} requests have no result after their abort")

    @fails_with_the_engine
    async def resume(self) -> None:
        """Opens the door again after a park without sleep.

        Raises:
            RuntimeError: where memory is asleep: wake it instead.
        """
        if self._memory.asleep:
            raise RuntimeError(f"resume: {self._asleep_text()} asleep; wake them one by one")
        engine = self._running()
        await engine.resume_generation()
        if await engine.is_paused():
            raise RuntimeError("resume: the engine reports that it is still paused")
        self._parked = False

    @fails_with_the_engine
    async def sleep(self, mode: SleepMode) -> None:
        """Gives up the KV cache, and at levels 1 and 2 the weights too. Only while parked.

        May be repeated with the same mode or a deeper one. On CPU, where host memory is the
        device, level 1 leaves the weights where they are. On GPUs level 2 cannot follow level 1:
        vLLM keeps the host's copy, and of the device nothing is left to give up.

        Raises:
            RuntimeError: not parked, a mode that cannot follow the present one, or bytes that
                should be gone are held.
        """
        engine = self._running()
        if not self._parked:
            raise RuntimeError("sleep: the engine must be parked")
        if mode is SleepMode.LEVEL_2:
            self._unusable = "level 2 sleep dropped them"
        await self._memory.give_up(engine, mode)

    @fails_with_the_engine
    async def wake(self, tag: WakeTag) -> None:
        """Takes one kind of memory back; ``kv_cache``, always the last, opens the door.

        Waking what is awake changes no memory.

        Raises:
            RuntimeError: weights still asleep when the KV cache is asked for, or memory that the
                workers do not hold afterwards.
        """
        engine = self._running()
        asleep = self._memory.asleep
        if tag == "kv_cache" and Part.WEIGHTS in asleep:
            raise RuntimeError("wake: weights must be woken, and published, before the KV cache")
        if tag in asleep:
            await self._memory.take_back(engine, Part(tag))
        if tag == "kv_cache":
            await self._reset_caches()
            await self.resume()

    @fails_with_the_engine
    async def residency(self) -> dict[Part, int]:
        """Bytes by part: of all workers together on CPU, of the fullest worker on GPUs.

        On GPUs only what vLLM can put to sleep is counted; communicators and graphs are not.
        """
        return await self._memory.measure(self._running())

    @fails_with_the_engine
    async def collect(self) -> None:
        """Has every worker collect garbage and give what its allocators keep back.

        Raises:
            RuntimeError: not parked: a forward pass would lose what it is about to reuse.
        """
        if not self._parked:
            raise RuntimeError("collect: the engine must be parked")
        await self._running().collective_rpc("collect_garbage")

    @fails_with_the_engine
    async def expected_weight_names(self) -> list[str]:
        """Names of the tensors that make one complete weight update, sorted."""
        reports = await self._running().collective_rpc("expected_weight_names")
        if any(report != reports[0] for report in reports):
            raise RuntimeError("expected_weight_names: the engine's workers disagree")
        names: list[str] = reports[0]
        return names

    @fails_with_the_engine
    async def begin_weight_update(self) -> None:
        """Starts an update: from here until it is finished the engine refuses to generate.

        Raises:
            RuntimeError: where requests may run, or the weights are asleep.
        """
        if not self._parked or Part.WEIGHTS in self._memory.asleep:
            raise RuntimeError(
                f"weight update: must be parked with weights awake; parked {self._parked}, "
                f"asleep {self._asleep_text()}"
            )
        self._unusable = "a weight update was begun and not finished"
        await self._running().start_weight_update()

    @fails_with_the_engine
    async def load_bucket(self, bucket: WeightBucket) -> None:
        """Has every worker check and load one bucket; on return its buffer may be reused.

        Raises:
            Exception: vLLM's, with the worker's message, where a worker refuses it.
        """
        from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

        update = _plain(bucket)
        await self._running().update_weights(WeightTransferUpdateRequest(update_info=update))

    @fails_with_the_engine
    async def copy_bucket(self, bucket: WeightBucket | None) -> float:
        """Has every worker copy a bucket; None: has it free the copy. Nothing else changes."""
        update = None if bucket is None else _plain(bucket)
        taken: list[float] = await self._running().collective_rpc("copy_bucket", args=(update,))
        return max(taken)

    @fails_with_the_engine
    async def finish_weight_update(self, version: Version) -> dict[str, float]:
        """Ends an update: the weights are ``version``'s, and no cache remembers others.

        Returns what it took since its beginning: seconds by part, of the slowest worker.

        Raises:
            Exception: vLLM's, with the worker's message, where weights are missing.
            RuntimeError: where a cache was not reset or the version not taken.
        """
        engine = self._running()
        await engine.finish_weight_update()
        await self._reset_caches()
        await self._set_version(version)
        self._unusable = None
        reports = await engine.collective_rpc("weight_update_seconds")
        return {part: max(report.get(part, 0.0) for report in reports) for part in reports[0]}

    @fails_with_the_engine
    async def reject_weights(self, reason: str) -> None:
        """Refuses to generate until a whole update has landed."""
        self._unusable = reason
        await self._running().collective_rpc("break_off_weight_update")

    @property
    def weights_version(self) -> Version | None:
        """Of the whole set of weights that the engine has, asleep or awake; None: it has none."""
        return None if self._unusable is not None else self._version

    @fails_with_the_engine
    async def prompt_logprobs(self, prompts: Sequence[Sequence[int]]) -> list[list[list[float]]]:
        """For this engine alone, and each prompt: log-probabilities of its tokens but the first.

        Of plain log-softmax at temperature 1. While parked no other request is let in meanwhile.

        Raises:
            RuntimeError: where memory is asleep, or the weights are not those of any version.
        """
        engine = self._running()
        if self._memory.asleep or self._unusable is not None:
            raise RuntimeError(
                f"prompt_logprobs: the engine must be awake with whole weights; asleep "
                f"{self._asleep_text()}, weights {self._unusable or 'whole'}"
            )
        if not self._parked:
            return [await score_prompts(engine, prompts)]
        await engine.resume_generation()
        try:
            return [await score_prompts(engine, prompts)]
        finally:
            await engine.pause_generation(mode="abort", clear_cache=False)

    def process_ids(self) -> Sequence[int]:
        """Live processes of the engine: its core, workers and their helpers."""
        if self._engine is None:
            return []
        return [process.pid for process in core_and_descendants(self._engine)]

    async def close(self) -> None:
        """Ends the engine and waits until its processes are gone, killing those that linger."""
        engine, self._engine = self._engine, None
        if engine is not None:
            await asyncio.to_thread(shut_down, engine)
            # vLLM's front end is full of cycles, and complains when it is only collected at the
            # interpreter's exit.
            del engine
            gc.collect()
        self._parked, self._unusable, self._version = False, None, None
        self._memory.mode = SleepMode.PAUSE
        self._processes = ()
        await asyncio.to_thread(self._resources.close)

    def _start_blocking(self) -> None:
        """Sets the engine rather than returning it: a future would keep it alive after its end."""
        self._engine = make_engine(
            self._model_path,
            self._config,
            dtype=self._dtype,
            seed=self._seed,
            platform=self._platform,
            log_file=self._log_file,
            run_id=self._run_id,
        )
        self._processes = core_and_descendants(self._engine)

    async def _warm_up(self) -> None:
        """Lets first requests, which take a second on CPU, be none of the run's."""
        requests = [
            GenerationRequest(
                request_id=f"warm-up-{index}",
                prompt_token_ids=[0],
                max_new_tokens=2,
                seed=index,
                temperature=1.0,
            )
            for index in range(2)
        ]
        await asyncio.gather(*(self.generate(request) for request in requests))
        await self._reset_caches()

    @fails_with_the_engine
    async def _set_version(self, version: Version) -> None:
        engine = self._running()
        await engine.update_weight_version(str(version))
        taken = await engine.get_weight_version()
        if taken != str(version):
            raise RuntimeError(f"version: the engine reports {taken!r}, set was {str(version)!r}")
        self._version = version

    @fails_with_the_engine
    async def _reset_caches(self) -> None:
        engine = self._running()
        if not await engine.reset_prefix_cache(reset_connector=True):
            raise RuntimeError("the prefix cache was not reset: blocks of it are in use")
        await engine.reset_mm_cache()
        await engine.reset_encoder_cache()

    def _asleep_text(self) -> str:
        return ", ".join(sorted(self._memory.asleep)) or "nothing"

    def _running(self) -> AsyncLLM:
        if self._engine is None:
            raise RuntimeError("the engine is not running")
        return self._engine


def _plain(bucket: WeightBucket) -> dict[str, Any]:
    return {
        "handle": dict(bucket.handle),
        "entries": [
            {field.name: getattr(entry, field.name) for field in dataclasses.fields(entry)}
            for entry in bucket.entries
        ],
    }


@contextmanager
def _tracked_in(futures: set[asyncio.Future[None]]) -> Iterator[None]:
    """Within it, ``futures`` holds one that is resolved on exit."""
    future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    futures.add(future)
    try:
        yield
    finally:
        futures.discard(future)
        future.set_result(None)
