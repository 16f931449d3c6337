"""Several engines behind the ports of one.

::

                        +--> engine 0 --+      requests: to one engine each, by load and prefix
    driver --> pool ----+--> engine 1 --+      everything else: to all, at once; all must succeed
                        +--> ...       -+

An engine that fails where others succeed leaves engines of different states, or of different
weights, so after such a failure the pool serves nothing until a whole set of weights has landed in
every engine.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol, TypeVar

from colocate.adapters.load_balance import LoadBalancer
from colocate.adapters.weights import WeightSink
from colocate.core.types import Part, SleepMode, Version
from colocate.ports import (
    EngineLostError,
    Generation,
    GenerationRequest,
    Inference,
    WakeTag,
    WeightBucket,
)

SETTLE_S = 5.0
"""For the other engines to end a call after one of them has failed it."""

T = TypeVar("T")


class Engine(Inference, WeightSink, Protocol):
    """One engine of a pool."""


class EnginePool:
    """An ``Inference`` and a ``WeightSink`` made of several.

    Args:
        engines: Of one model and one configuration; not started.
        one_device: They hold memory of one and the same device, as all engines on CPU do; else
            each has devices of its own.
    """

    def __init__(self, engines: Sequence[Engine], *, one_device: bool) -> None:
        if not engines:
            raise ValueError("an engine pool needs at least one engine")
        self._engines = tuple(engines)
        self._one_device = one_device
        self._balancer = LoadBalancer(len(self._engines))
        self._is_started = False
        self._parked = False
        self._unusable: str | None = None

    async def start(self) -> None:
        """Starts one engine after another: none measures memory while another takes it.

        Raises:
            RuntimeError: running already, or an engine that cannot start; then none runs.
        """
        if self._is_started:
            raise RuntimeError("start: the engines are running already")
        self._is_started = True
        for index, engine in enumerate(self._engines):
            try:
                await engine.start()
            except BaseException as error:
                try:
                    await self.close()
                except RuntimeError as leftover:
                    error.add_note(str(leftover))
                if not isinstance(error, Exception):
                    raise
                kind = EngineLostError if isinstance(error, EngineLostError) else RuntimeError
                raise kind(f"start: {self._name(index)}: {error}") from error

    async def generate(self, request: GenerationRequest) -> Generation:
        """Runs the request on the engine that ``load_balance`` names.

        Raises:
            RuntimeError: after a call that not every engine has carried out.
            Exception: the engine's own.
        """
        if self._unusable is not None:
            raise RuntimeError(
                f"generate: the engines cannot be served from: {self._unusable}; publish a whole "
                "set of weights first"
            )
        num_tokens = len(request.prompt_token_ids)
        with self._balancer.assigned(request.affinity, num_tokens) as index:
            return await self._engines[index].generate(request)

    async def park(self) -> None:
        self._parked = True
        await self._change("park", lambda engine: engine.park())

    async def resume(self) -> None:
        await self._change("resume", lambda engine: engine.resume())
        self._parked = False

    async def sleep(self, mode: SleepMode) -> None:
        self._require_parked("sleep")
        await self._change("sleep", lambda engine: engine.sleep(mode))

    async def wake(self, tag: WakeTag) -> None:
        await self._change(f"wake {tag}", lambda engine: engine.wake(tag))
        if tag == "kv_cache":
            self._parked = False
            self._balancer.forget()

    async def collect(self) -> None:
        self._require_parked("collect")
        await self._change("collect", lambda engine: engine.collect())

    async def residency(self) -> Mapping[Part, int]:
        """Bytes by part: of all engines where they share a device, else of the fullest engine."""
        held = await self._ask("residency", lambda engine: engine.residency())
        if self._one_device:
            return {part: sum(report[part] for report in held) for part in held[0]}
        return max(held, key=lambda report: sum(report.values()))

    def process_ids(self) -> Sequence[int]:
        return [pid for engine in self._engines for pid in engine.process_ids()]

    async def close(self) -> None:
        """Closes every engine, also where one cannot be closed.

        Raises:
            RuntimeError: names each that could not.
        """
        closings = [engine.close() for engine in self._engines]
        results = await asyncio.gather(*closings, return_exceptions=True)
        self._is_started = self._parked = False
        self._unusable = None
        self._balancer.forget()
        self._raise_failures("close", dict(enumerate(results)))

    # Weights

    @property
    def weights_version(self) -> Version | None:
        versions = {engine.weights_version for engine in self._engines}
        return versions.pop() if len(versions) == 1 and self._unusable is None else None

    async def expected_weight_names(self) -> Sequence[str]:
        """Raises ``RuntimeError`` where the engines expect different names."""
        expected = await self._ask("weight names", lambda engine: engine.expected_weight_names())
        if any(sorted(names) != sorted(expected[0]) for names in expected):
            raise RuntimeError(
                "weight names: the engines expect different weights; serve one model"
            )
        return expected[0]

    async def begin_weight_update(self) -> None:
        self._require_parked("weight update")
        await self._change("begin weight update", lambda engine: engine.begin_weight_update())

    async def load_bucket(self, bucket: WeightBucket) -> None:
        """Every engine's workers map the same bucket, each for itself."""
        await self._change("load bucket", lambda engine: engine.load_bucket(bucket))

    async def finish_weight_update(self, version: Version) -> Mapping[str, float]:
        taken = await self._change(
            "finish weight update", lambda engine: engine.finish_weight_update(version)
        )
        self._unusable = None
        self._balancer.forget()
        return {part: max(seconds[part] for seconds in taken) for part in taken[0]}

    async def copy_bucket(self, bucket: WeightBucket | None) -> float:
        return max(await self._ask("copy bucket", lambda engine: engine.copy_bucket(bucket)))

    async def prompt_logprobs(
        self, prompts: Sequence[Sequence[int]]
    ) -> Sequence[Sequence[Sequence[float]]]:
        scored = await self._ask(
            "prompt log-probabilities", lambda engine: engine.prompt_logprobs(prompts)
        )
        return [one_engine for scores in scored for one_engine in scores]

    async def reject_weights(self, reason: str) -> None:
        self._unusable = reason
        await self._ask("reject weights", lambda engine: engine.reject_weights(reason))

    def _require_parked(self, operation: str) -> None:
        """Asked here as well: a call that every engine refuses has changed nothing."""
        if not self._parked:
            raise RuntimeError(f"{operation}: the engines must be parked")

    # Calls to all engines

    async def _change(
        self, operation: str, call: Callable[[Engine], Coroutine[Any, Any, T]]
    ) -> list[T]:
        """As ``_ask``, for calls after which the engines must be in one state."""
        try:
            return await self._ask(operation, call)
        except BaseException as error:
            ended = "was broken off" if isinstance(error, asyncio.CancelledError) else "failed"
            self._unusable = f"{operation} {ended}"
            raise

    async def _ask(
        self, operation: str, call: Callable[[Engine], Coroutine[Any, Any, T]]
    ) -> list[T]:
        """The answers of all engines, in their order.

        Raises:
            RuntimeError: names each engine that failed. Those that had not answered some time
                after the first failure were cancelled, or a hanging engine would hide why.
            EngineLostError: likewise, where one of them is lost: the pool is closed and started as
                a whole then.
        """
        tasks = [asyncio.ensure_future(call(engine)) for engine in self._engines]
        try:
            _, waiting = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            if waiting:
                await asyncio.wait(waiting, timeout=SETTLE_S)
        finally:
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        self._raise_failures(operation, dict(enumerate(outcomes)))
        return [task.result() for task in tasks]

    def _raise_failures(self, operation: str, outcomes: Mapping[int, object]) -> None:
        failed = {i: o for i, o in outcomes.items() if isinstance(o, BaseException)}
        causes = [o for o in failed.values() if not isinstance(o, asyncio.CancelledError)]
        if not failed:
            return
        told = "; ".join(
            f"{self._name(index)}: "
            + (
                f"no answer {SETTLE_S:.0f} s after the failure of another"
                if isinstance(error, asyncio.CancelledError)
                else str(error) or type(error).__name__
            )
            for index, error in failed.items()
        )
        is_lost = any(isinstance(cause, EngineLostError) for cause in causes)
        error = EngineLostError if is_lost else RuntimeError
        raise error(f"{operation}: {told}") from (causes[0] if causes else None)

    def _name(self, index: int) -> str:
        return f"engine {index} of {len(self._engines)}"
