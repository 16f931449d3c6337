"""Swaps as the driver makes them, each part timed: no scheduler decides, and no run goes on beside.

::

    requests in flight -> park -> sleep -> load -> train -> offload -> wake weights -> publish
                            ^                                                            |
                            +-- re-prefill the parked <- wake KV <- offload after push <-+
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from colocate.adapters.memory.host import HostMemory
from colocate.adapters.weights import StreamedTransfer
from colocate.core.memory import EVICTED
from colocate.core.types import FinishReason, MemorySample, Part, SleepMode, Span, Version
from colocate.driver import Ports
from colocate.ports import (
    Generation,
    GenerationRequest,
    Inference,
    MemoryProbe,
    Trainer,
    TrainingBatch,
    TrainingSample,
)
from tools.swap_bench.setting import Plan, Setting

SWAP_PARTS = (
    "park",
    "sleep",
    "load",
    "offload",
    "wake weights",
    "publish",
    "offload after push",
    "wake KV",
    "measure",
    "re-prefill",
)
"""What a swap costs, in order; ``measure`` is the sum over all phases."""

GROUPS, GROUP_SIZE, SAMPLE_TOKENS = 2, 4, 32
"""Of the training batch: small, since training is not what is measured."""


@dataclass(slots=True)
class Swap:
    """What one swap took and left.

    Attributes:
        seconds: By part; ``train`` and ``verify``, which are no part of its cost, among them.
        publish_seconds: Of publishing, by what both sides did; these overlap.
        first_token_s: From the engine's being awake to the first token of a parked request.
        reprefilled: Tokens of the parked requests that were computed once more.
        reported: Bytes that the engine says to have given up.
        device: Bytes by name of a reading, as the memory probe has them.
        rss: The same of the processes' RAM.
    """

    number: int
    seconds: dict[str, float] = field(default_factory=dict)
    publish_seconds: Mapping[str, float] = field(default_factory=dict)
    num_bytes: int = 0
    num_tensors: int = 0
    first_token_s: float = 0.0
    reprefilled: int = 0
    parked: int = 0
    reported: int = 0
    device: dict[str, int] = field(default_factory=dict)
    rss: dict[str, int] = field(default_factory=dict)

    @contextmanager
    def timed(self, part: str) -> Iterator[None]:
        """Adds what is done within to ``part``."""
        began = time.perf_counter()
        yield
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began

    @property
    def cost_s(self) -> float:
        return sum(self.seconds.get(part, 0.0) for part in SWAP_PARTS)


class Swapper:
    """Makes swaps with started ports, one after another.

    Args:
        vocabulary: Number of tokens that prompts are drawn from.
        verify_every: As ``inference.verify_every``.
    """

    def __init__(
        self,
        ports: Ports,
        probe: MemoryProbe,
        setting: Setting,
        plan: Plan,
        *,
        vocabulary: int,
        verify_every: int,
        seed: int,
    ) -> None:
        assert isinstance(ports.transfer, StreamedTransfer)
        self._inference, self._trainer, self._transfer = (
            ports.inference,
            ports.trainer,
            ports.transfer,
        )
        self._probe = probe
        self._host = HostMemory(
            {"engine": ports.inference.process_ids, "trainer": ports.trainer.process_ids}, None
        )
        self._setting = setting
        self._plan = plan
        self._vocabulary = vocabulary
        self._verify_every = verify_every
        self._draw = random.Random(seed)
        self._version = Version(0)

    async def swap(self, number: int) -> Swap:
        """One whole swap, from requests in flight to the parked ones' next tokens.

        Raises:
            RuntimeError: a request that was not parked, or tokens of another version than the one
                that was published; and whatever the ports raise.
        """
        swap = Swap(number)
        engine, trainer, plan = self._inference, self._trainer, self._plan
        every = 0 if self._setting.bare else self._verify_every
        verifies = every > 0 and number % every == 0
        requests, running = await self._begin_requests(number)
        with swap.timed("park"):
            await engine.park()
        parked = await self._collect_parked(running)
        swap.parked = len(parked)
        before = await self._measure(swap, engine)
        if plan.mode is not SleepMode.PAUSE:
            with swap.timed("sleep"):
                await engine.sleep(plan.mode)
        held = await self._measure(swap, engine, name="asleep")
        swap.reported = sum(before[part] - held[part] for part in EVICTED[plan.mode])
        with swap.timed("load"):
            await trainer.load()
        await self._measure(swap, trainer, name="loaded")
        self._version = await self._train(swap)
        if verifies:
            with swap.timed("verify"):
                await self._transfer.expect()
        if plan.offload:
            with swap.timed("offload"):
                await trainer.offload(plan.offload)
        await self._measure(swap, trainer)
        if Part.WEIGHTS in EVICTED[plan.mode]:
            with swap.timed("wake weights"):
                await engine.wake("weights")
            await self._measure(swap, engine)
        await self._publish(swap)
        with swap.timed("wake KV"):
            if plan.mode is SleepMode.PAUSE:
                await engine.resume()
            else:
                await engine.wake("kv_cache")
        await self._measure(swap, engine, name="awake")
        if verifies:
            with swap.timed("verify"):
                await self._transfer.verify()
        if requests:
            await self._continue(swap, requests, parked)
        return swap

    async def stop_before_publishing(self) -> None:
        """Begins one more swap and leaves it where weights would go to the engine."""
        await self._inference.park()
        if self._plan.mode is not SleepMode.PAUSE:
            await self._inference.sleep(self._plan.mode)
        await self._trainer.load()
        await self._trainer.offload(self._plan.offload)
        if Part.WEIGHTS in EVICTED[self._plan.mode]:
            await self._inference.wake("weights")

    async def _train(self, swap: Swap) -> Version:
        """The version to publish: in a bare swap the same weights under a new number."""
        if self._setting.bare:
            return Version(self._version + 1)
        with swap.timed("train"):
            report = await self._trainer.train(self._batch())
        return report.version

    async def _begin_requests(
        self, number: int
    ) -> tuple[list[GenerationRequest], list[asyncio.Task[Generation]]]:
        """On return every request has sampled about as many tokens as the setting says."""
        setting = self._setting
        if setting.bare:
            return [], []
        longest = setting.max_model_len - setting.prompt_tokens
        requests = [
            self._request(f"{number}-{index}", self._prompt(), longest)
            for index in range(setting.requests)
        ]
        running = [asyncio.create_task(self._inference.generate(each)) for each in requests]
        pacemaker = self._request(f"{number}-pace", self._prompt(), setting.sampled_tokens)
        await self._inference.generate(pacemaker)
        return requests, running

    async def _collect_parked(self, running: list[asyncio.Task[Generation]]) -> list[Generation]:
        parked = list(await asyncio.gather(*running))
        ended = [each.request_id for each in parked if each.finish_reason is not FinishReason.ABORT]
        if ended:
            raise RuntimeError(
                f"{len(ended)} of {len(parked)} requests had ended before the park, so that it "
                "would be measured on fewer; raise --prompt-tokens or lower --sampled-tokens"
            )
        return parked

    async def _publish(self, swap: Swap) -> None:
        with swap.timed("publish"):
            publication = await self._transfer.publish(self._version)
        if publication.num_tensors == 0:
            raise RuntimeError(f"nothing was published for version {self._version}")
        swap.publish_seconds = publication.seconds
        swap.num_bytes, swap.num_tensors = publication.num_bytes, publication.num_tensors
        if self._plan.offload_after_push:
            with swap.timed("offload after push"):
                await self._trainer.offload(self._plan.offload_after_push)
        await self._measure(swap, self._inference, self._trainer)

    async def _continue(
        self, swap: Swap, requests: list[GenerationRequest], parked: list[Generation]
    ) -> None:
        """Sends the parked requests again, as a run does, for one more token each."""
        resumed = [
            self._request(
                f"{request.request_id}-resumed",
                [*request.prompt_token_ids, *partial.token_ids],
                1,
            )
            for request, partial in zip(requests, parked, strict=True)
        ]
        with swap.timed("re-prefill"):
            began = time.perf_counter()
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._inference.generate(each)) for each in resumed]
                await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                swap.first_token_s = time.perf_counter() - began
        for request, task in zip(resumed, tasks, strict=True):
            generation = task.result()
            if generation.spans != (Span(version=self._version, length=1),):
                raise RuntimeError(
                    f"request {request.request_id}: its token must be of version "
                    f"{self._version}, but is of {generation.spans}"
                )
            swap.reprefilled += len(request.prompt_token_ids) - generation.num_cached_tokens

    async def _measure(
        self, swap: Swap, *concerned: Inference | Trainer, name: str | None = None
    ) -> dict[Part, int]:
        """What the driver asks when a phase ends. Under ``name`` the readings are kept."""
        held: dict[Part, int] = {}
        with swap.timed("measure"):
            for tenant in concerned:
                held.update(await tenant.residency())
            sample = await asyncio.to_thread(self._probe.sample)
        if name is not None:
            await self._keep(swap, sample, name)
        return held

    async def _keep(self, swap: Swap, sample: MemorySample, name: str) -> None:
        host = await asyncio.to_thread(self._host.read)
        swap.rss |= {f"{tenant} {name}": held for tenant, held in host.tenants().items()}
        swap.rss[f"driver {name}"] = host.by_process[os.getpid()]
        swap.device |= {f"{tenant} {name}": held for tenant, held in sample.tenants.items()}

    def _request(self, name: str, prompt: list[int], max_new_tokens: int) -> GenerationRequest:
        return GenerationRequest(
            request_id=name,
            prompt_token_ids=prompt,
            max_new_tokens=max_new_tokens,
            seed=self._draw.randrange(2**31),
            temperature=1.0,
        )

    def _prompt(self) -> list[int]:
        return self._tokens(self._setting.prompt_tokens)

    def _tokens(self, count: int) -> list[int]:
        return [self._draw.randrange(self._vocabulary) for _ in range(count)]

    def _batch(self) -> TrainingBatch:
        """Trajectories of one turn, made up; the first half of each is its prompt."""
        half = SAMPLE_TOKENS // 2
        return TrainingBatch(
            batch=self._version,  # type: ignore[arg-type]  # any number that is new
            version=self._version,
            samples=[
                TrainingSample(
                    trajectory=index,  # type: ignore[arg-type]
                    group=index // GROUP_SIZE,  # type: ignore[arg-type]
                    token_ids=self._tokens(SAMPLE_TOKENS),
                    loss_mask=[0] * half + [1] * half,
                    logprobs=[0.0] * half + [-3.0] * half,
                    versions=[-1] * half + [self._version] * half,
                    reward=self._draw.random(),
                )
                for index in range(GROUPS * GROUP_SIZE)
            ],
        )
