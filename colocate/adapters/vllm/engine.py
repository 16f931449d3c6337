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
import functools
import gc
import multiprocessing
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar

from colocate.adapters.vllm.platform import Device, engine_platform
from colocate.adapters.vllm.processes import (
    abandon,
    core_and_descendants,
    death_of,
    make_engine,
    shut_down,
)
from colocate.adapters.vllm.spawn import first_error, vllm_logging_to
from colocate.config import InferenceConfig
from colocate.core.types import FinishReason, Version
from colocate.ports import Generation, GenerationRequest, WakeTag, WeightBucket

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

_ABORT_DEADLINE_S = 60.0
"""For results that the engine has already sent; passing it means that one was lost."""

_DEATH_CHECK_S = 0.5
"""Between two looks at whether the engine that owes an answer still lives."""


P = ParamSpec("P")
T = TypeVar("T")


def fails_with_the_engine(
    method: Callable[Concatenate[VllmInference, P], Awaitable[T]],
) -> Callable[Concatenate[VllmInference, P], Coroutine[Any, Any, T]]:
    """A call to an engine that dies meanwhile, or is dead, ends with ``EngineDiedError``.

    vLLM leaves a call of its core unanswered where the core dies under it, and its own error on a
    dead engine points to a stack trace that nobody sees.
    """

    @functools.wraps(method)
    async def call(self: VllmInference, /, *args: P.args, **kwargs: P.kwargs) -> T:
        engine = self._engine
        if engine is None:
            return await method(self, *args, **kwargs)
        from vllm.v1.engine.exceptions import EngineDeadError

        answer = asyncio.ensure_future(method(self, *args, **kwargs))
        try:
            while not answer.done():
                await asyncio.wait({answer}, timeout=_DEATH_CHECK_S)
                if engine.errored and not answer.done():
                    raise death_of(engine, self._log_file, self._log_start)
            return answer.result()
        except EngineDeadError as error:
            raise death_of(engine, self._log_file, self._log_start) from error
        finally:
            if not answer.done():
                answer.cancel()
                await asyncio.wait({answer})

    return call


class VllmInference:
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
    ) -> None:
        self._model_path = str(model_path)
        self._config = config
        self._dtype = dtype
        self._seed = seed
        self._log_file = log_file
        self._run_id = run_id
        self._platform = engine_platform(device, config, threads)
        self._engine: AsyncLLM | None = None
        self._resources = ExitStack()
        self._log_start = 0
        self._parked = False
        self._asleep: set[WakeTag] = set()
        self._unusable: str | None = None
        self._pending: set[asyncio.Future[None]] = set()
        self._submitting: set[asyncio.Future[None]] = set()

    async def start(self) -> None:
        """Starts the engine, awake and warm, at version 0.

        Raises:
            RuntimeError: where it is running already, or cannot start; then with the first error
                of its processes, which are gone.
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
            cause = (
                first_error(self._log_file, self._log_start) or f"{type(error).__name__}: {error}"
            )
            await self.close()
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
                await engine.abort(request.request_id)
                raise
            except EngineDeadError as error:
                raise death_of(engine, self._log_file, self._log_start) from error
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
        if self._asleep:
            raise RuntimeError(f"resume: {sorted(self._asleep)} asleep; wake them one by one")
        engine = self._running()
        await engine.resume_generation()
        if await engine.is_paused():
            raise RuntimeError("resume: the engine reports that it is still paused")
        self._parked = False

    @fails_with_the_engine
    async def sleep(self, level: Literal[1, 2]) -> None:
        """Drops the KV cache, and at level 2 the weights. Only while parked.

        Raises:
            RuntimeError: not parked, asleep already, or bytes that should be gone are held.
        """
        engine = self._running()
        if not self._parked or self._asleep:
            raise RuntimeError(
                f"sleep: must be parked and awake; parked {self._parked}, "
                f"asleep {sorted(self._asleep)}"
            )
        if level == 2:
            self._unusable = "level 2 sleep dropped them"
        self._asleep = {"weights", "kv_cache"}
        await engine.sleep(level, mode="abort")
        if not await engine.is_sleeping():
            raise RuntimeError("sleep: the engine reports that it is awake")
        held = await self.residency()
        if held["kv_cache"] > 0 or (level == 2 and held["weights"] > 0):
            raise RuntimeError(f"sleep: the workers still hold bytes after level {level}: {held}")

    @fails_with_the_engine
    async def wake(self, tag: WakeTag) -> None:
        """Takes one kind of memory back; ``kv_cache``, always the last, opens the door.

        Waking what is awake changes no memory.

        Raises:
            RuntimeError: weights still asleep when the KV cache is asked for, or the engine
                reports that kind asleep afterwards.
        """
        engine = self._running()
        if tag == "kv_cache" and "weights" in self._asleep:
            raise RuntimeError("wake: weights must be woken, and published, before the KV cache")
        if tag in self._asleep:
            # One tag a call: vLLM ignores all tags of a call after one that is awake.
            await engine.wake_up([tag])
            held = await self.residency()
            if held[tag] == 0:
                raise RuntimeError(f"wake: the workers hold no bytes of {tag!r}: {held}")
            self._asleep.discard(tag)
        if tag == "kv_cache":
            await self._reset_caches()
            await self.resume()

    @fails_with_the_engine
    async def residency(self) -> dict[str, int]:
        """Bytes that the workers hold together, by wake tag."""
        reports = await self._running().collective_rpc("residency")
        return {tag: sum(report[tag] for report in reports) for tag in ("weights", "kv_cache")}

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
        if not self._parked or "weights" in self._asleep:
            raise RuntimeError(
                f"weight update: must be parked with weights awake; parked {self._parked}, "
                f"asleep {sorted(self._asleep)}"
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

        update = {
            "handle": dict(bucket.handle),
            "entries": [dataclasses.asdict(entry) for entry in bucket.entries],
        }
        await self._running().update_weights(WeightTransferUpdateRequest(update_info=update))

    @fails_with_the_engine
    async def finish_weight_update(self, version: Version) -> None:
        """Ends an update: the weights are ``version``'s, and no cache remembers others.

        Raises:
            Exception: vLLM's, with the worker's message, where weights are missing.
            RuntimeError: where a cache was not reset or the version not taken.
        """
        await self._running().finish_weight_update()
        await self._reset_caches()
        await self._set_version(version)
        self._unusable = None

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
        self._parked, self._unusable = False, None
        self._asleep.clear()
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

    @fails_with_the_engine
    async def _reset_caches(self) -> None:
        engine = self._running()
        if not await engine.reset_prefix_cache(reset_connector=True):
            raise RuntimeError("the prefix cache was not reset: blocks of it are in use")
        await engine.reset_mm_cache()
        await engine.reset_encoder_cache()

    def _running(self) -> AsyncLLM:
        if self._engine is None:
            raise RuntimeError("the engine is not running")
        return self._engine


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
