"""Simulated ports: the behaviour that the driver relies on, with durations for work.

They keep the contracts of the real ones (``tests/contracts``) and refuse misuse as those would:
a request to a sleeping engine, a training step without the trainer loaded.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from colocate.core.memory import EVICTED
from colocate.core.types import (
    ENGINE_PARTS,
    TRAINER_PARTS,
    FinishReason,
    GroupId,
    MemorySample,
    Part,
    SleepMode,
    Span,
    Version,
)
from colocate.ports import (
    Generation,
    GenerationRequest,
    Prompt,
    Publication,
    StepOutcome,
    StepReport,
    Trainer,
    TrainingBatch,
    WakeTag,
)
from colocate.run_state import RunState

SIM_VOCABULARY = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class SimEngineSettings:
    """Durations in seconds, sizes in bytes."""

    token_s: float = 0.02
    stop_probability: float = 0.1
    weight_bytes: int = 2 * 2**30
    kv_bytes: int = 8 * 2**30
    residual_bytes: int = 2**28
    sleep_s: float = 0.2
    wake_s: float = 0.2


class SimInference:
    """An engine whose every request decodes one token each ``token_s``."""

    def __init__(self, settings: SimEngineSettings | None = None) -> None:
        self.settings = settings or SimEngineSettings()
        self.version = Version(0)
        self.num_requests = 0
        self._parked = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._asleep: frozenset[Part] = frozenset()
        self._weights_are_valid = True
        self._running = 0
        self._started = False

    @property
    def held_bytes(self) -> int:
        if not self._started:
            return 0
        return self.settings.residual_bytes + sum(self._held().values())

    def _held(self) -> dict[Part, int]:
        sizes = {Part.KV_CACHE: self.settings.kv_bytes, Part.WEIGHTS: self.settings.weight_bytes}
        return {part: 0 if part in self._asleep else size for part, size in sizes.items()}

    async def residency(self) -> Mapping[Part, int]:
        return self._held() if self._started else dict.fromkeys(ENGINE_PARTS, 0)

    async def collect(self) -> None:
        if not self._parked.is_set():
            raise RuntimeError("garbage is collected of a parked engine only")
        await asyncio.sleep(self.settings.sleep_s)

    async def start(self) -> None:
        await asyncio.sleep(1.0)
        self._started = True
        self.version = Version(0)
        self._asleep = frozenset()
        self._weights_are_valid = True
        self._parked.clear()

    async def generate(self, request: GenerationRequest) -> Generation:
        if not self._started:
            raise RuntimeError(f"request {request.request_id} reached an engine that is not there")
        if self._asleep:
            raise RuntimeError(f"request {request.request_id} reached a sleeping engine")
        if not self._weights_are_valid:
            raise RuntimeError(f"request {request.request_id} reached an engine without weights")
        self.num_requests += 1
        self._running += 1
        self._idle.clear()
        began_s = asyncio.get_running_loop().time()
        planned = self._plan(request)
        try:
            async with asyncio.timeout(len(planned) * self.settings.token_s):
                await self._parked.wait()
            elapsed_s = asyncio.get_running_loop().time() - began_s
            tokens, reason = planned[: int(elapsed_s / self.settings.token_s)], FinishReason.ABORT
        except TimeoutError:
            tokens = planned
            stopped = tokens[-1] in request.stop_token_ids
            reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()
        spans = (Span(version=self.version, length=len(tokens)),) if tokens else ()
        return Generation(
            request_id=request.request_id,
            token_ids=tokens,
            logprobs=[-((t % 7) + 1) / 8 for t in tokens],
            spans=spans,
            finish_reason=reason,
        )

    def _plan(self, request: GenerationRequest) -> list[int]:
        draw = random.Random(request.seed)
        tokens: list[int] = []
        while len(tokens) < request.max_new_tokens:
            if request.stop_token_ids and draw.random() < self.settings.stop_probability:
                tokens.append(request.stop_token_ids[0])
                break
            tokens.append(draw.randrange(1, SIM_VOCABULARY))
        return tokens

    async def park(self) -> None:
        self._parked.set()
        await self._idle.wait()

    async def resume(self) -> None:
        self._parked.clear()

    async def sleep(self, mode: SleepMode) -> None:
        if not self._parked.is_set():
            raise RuntimeError("the engine was put to sleep without having been parked")
        if mode is SleepMode.PAUSE:
            raise ValueError("a pause is a park, and no sleep")
        await asyncio.sleep(self.settings.sleep_s)
        self._asleep |= EVICTED[mode]
        self._weights_are_valid &= mode is not SleepMode.LEVEL_2

    async def wake(self, tag: WakeTag) -> None:
        part = Part(tag)
        if part is Part.KV_CACHE and Part.WEIGHTS in self._asleep:
            raise RuntimeError("the KV cache was woken before the weights")
        await asyncio.sleep(self.settings.wake_s)
        self._asleep -= {part}
        if part is Part.KV_CACHE:
            await self.resume()

    def take_weights(self, version: Version) -> None:
        """A whole set has arrived."""
        self.version = version
        self._weights_are_valid = True

    def check_update(self) -> None:
        """Refuses new weights where a request could read them half-loaded, or where none fit."""
        if not self._parked.is_set() or Part.WEIGHTS in self._asleep:
            raise RuntimeError("weights are published to a parked engine whose weights are awake")

    def process_ids(self) -> Sequence[int]:
        return ()

    async def close(self) -> None:
        self._started = False
        self._parked.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimTrainerSettings:
    """``parts`` are bytes on the device when everything is there; a move takes ``move_s``, and
    ``byte_s`` for each byte."""

    token_s: float = 1e-4
    parts: Mapping[Part, int] = field(
        default_factory=lambda: {
            Part.PARAMETERS: 2**30,
            Part.GRADIENTS: 2**30,
            Part.OPTIMIZER: 4 * 2**30,
            Part.REFERENCE: 0,
        }
    )
    activation_bytes: int = 2**30
    residual_bytes: int = 0
    move_s: float = 0.2
    byte_s: float = 0.0


class SimTrainer:
    """Trains by waiting; counts what it was given."""

    def __init__(self, settings: SimTrainerSettings | None = None) -> None:
        self.settings = settings or SimTrainerSettings()
        self.version = Version(0)
        self.trained: list[TrainingBatch] = []
        self._away: frozenset[Part] = TRAINER_PARTS
        self._started = False
        self._is_training = False
        self._saved: dict[Path, Version] = {}

    @property
    def is_loaded(self) -> bool:
        return self._started and not self._away

    @property
    def held_bytes(self) -> int:
        if not self._started:
            return 0
        activations = self.settings.activation_bytes if self._is_training else 0
        return self.settings.residual_bytes + activations + sum(self._held().values())

    def _held(self) -> dict[Part, int]:
        sizes = self.settings.parts
        return {part: 0 if part in self._away else sizes.get(part, 0) for part in TRAINER_PARTS}

    async def residency(self) -> Mapping[Part, int]:
        return self._held() if self._started else dict.fromkeys(TRAINER_PARTS, 0)

    async def collect(self) -> None:
        await asyncio.sleep(self.settings.move_s)

    async def start(self) -> None:
        await asyncio.sleep(1.0)
        self._started = True
        self.version = Version(0)
        self._away = frozenset()

    async def load(self) -> None:
        await self._move(self._away)
        self._away = frozenset()

    async def _move(self, parts: Collection[Part]) -> None:
        num_bytes = sum(self.settings.parts.get(part, 0) for part in parts)
        await asyncio.sleep(self.settings.move_s + num_bytes * self.settings.byte_s)

    async def train(self, batch: TrainingBatch) -> StepReport:
        if not self.is_loaded:
            raise ValueError("a training step without the trainer loaded")
        if batch.version != self.version:
            raise ValueError(f"a batch for version {batch.version}, but this is {self.version}")
        num_tokens = sum(sum(sample.loss_mask) for sample in batch.samples)
        if not num_tokens:
            raise ValueError(f"batch {batch.batch} has no trainable token")
        self._is_training = True
        await asyncio.sleep(num_tokens * self.settings.token_s)
        self._is_training = False
        self.version = Version(self.version + 1)
        self.trained.append(batch)
        rewards = [sample.reward for sample in batch.samples if sample.origin is None]
        metrics = {"num_tokens": float(num_tokens)}
        if rewards:
            metrics["reward_mean"] = sum(rewards) / len(rewards)
        return StepReport(batch=batch.batch, version=self.version, metrics=metrics)

    async def offload(self, parts: Collection[Part]) -> None:
        await self._move(set(parts) - self._away)
        self._away |= frozenset(parts)

    async def save(self, folder: Path) -> None:
        await asyncio.sleep(self.settings.move_s)
        self._saved[folder] = self.version

    def remember(self, folder: Path, version: Version) -> None:
        """A folder that a trainer of an earlier life has written."""
        self._saved[folder] = version

    async def restore(self, folder: Path) -> Version:
        await asyncio.sleep(self.settings.move_s)
        self.version = self._saved[folder]
        return self.version

    def process_ids(self) -> Sequence[int]:
        return ()

    async def close(self) -> None:
        self._started = self._is_training = False


class SimTransfer:
    """Hands the trainer's version to the engine."""

    def __init__(
        self, trainer: SimTrainer, inference: SimInference, publish_s: float = 0.1
    ) -> None:
        self._trainer = trainer
        self._inference = inference
        self._publish_s = publish_s
        self._expected: Version | None = None

    async def expect(self) -> None:
        self._expected = self._trainer.version

    async def verify(self) -> None:
        if self._expected != self._inference.version:
            raise RuntimeError(
                f"verify: the engine answers with version {self._inference.version}, expected is "
                f"{self._expected}"
            )

    async def publish(self, version: Version) -> Publication:
        self._inference.check_update()
        await asyncio.sleep(self._publish_s)
        self._inference.take_weights(self._trainer.version)
        num_bytes = self._inference.settings.weight_bytes
        return Publication(version=self._trainer.version, num_tensors=1, num_bytes=num_bytes)


class SimMemory:
    """A device that holds what engine and trainer say that they hold."""

    def __init__(self, trainer: SimTrainer, inference: SimInference, total: int) -> None:
        self._trainer = trainer
        self._inference = inference
        self._total = total

    async def measure(self) -> MemorySample:
        tenants = {"engine": self._inference.held_bytes, "trainer": self._trainer.held_bytes}
        return MemorySample(used=sum(tenants.values()), total=self._total, tenants=tenants)


def sim_folder(version: Version) -> Path:
    """Where a simulated trainer's checkpoint would lie."""
    return Path(f"step_{version}")


class SimCheckpoints:
    """Remembers states by version."""

    def __init__(self) -> None:
        self.saved: dict[Version, RunState] = {}
        self.ratings: dict[Version, tuple[float, str]] = {}

    async def save(self, trainer: Trainer, state: RunState) -> None:
        state.check_contents()
        await trainer.save(sim_folder(state.version))
        self.saved[state.version] = state

    async def restore(self, trainer: Trainer, version: Version) -> None:
        restored = await trainer.restore(sim_folder(version))
        assert restored == version

    async def abandon(self, after: Version) -> None:
        self.saved = {version: state for version, state in self.saved.items() if version <= after}

    async def rate(self, version: Version, value: float, by: str) -> None:
        if version not in self.saved:
            raise ValueError(f"there is no checkpoint of version {version} to rate")
        self.ratings[version] = (value, by)


class SimPrompts:
    def prompt(self, position: GroupId) -> Prompt:
        return Prompt(text="?" * (1 + position % 5), columns={"position": position})


class SimTokenizer:
    """One token a character."""

    def encode(self, text: str) -> list[int]:
        return [ord(c) % SIM_VOCABULARY for c in text]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(chr(t) for t in token_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimEnvironmentSettings:
    """``tail`` is the Pareto exponent of a step's latency; infinite is constant.

    ``flat_probability`` is of prompts at which every episode earns the same.
    """

    mean_turns: float = 3.0
    latency_s: float = 0.3
    tail: float = 2.0
    failure_probability: float = 0.0
    invalid_probability: float = 0.0
    flat_probability: float = 0.0
    is_replayable: bool = True


class SimEnvironment:
    """Answers after a heavy-tailed latency, ends after a geometric number of turns."""

    def __init__(self, settings: SimEnvironmentSettings) -> None:
        self._settings = settings
        self.is_replayable = settings.is_replayable
        self._draw = random.Random(0)
        self._reward: float | None = None
        self.is_open = False

    async def reset(self, prompt: Prompt, seed: int) -> str:
        self._draw = random.Random(seed)
        of_prompt = random.Random(f"reward of {prompt.columns.get('position')}")
        if of_prompt.random() < self._settings.flat_probability:
            self._reward = of_prompt.random()
        self.is_open = True
        await self._wait()
        return ""

    async def step(self, action: str) -> StepOutcome:
        await self._wait()
        draw = self._draw.random()
        if draw < self._settings.failure_probability:
            raise ConnectionError("the simulated sandbox went away")
        if self._draw.random() < self._settings.invalid_probability:
            return StepOutcome(observation="", done=True, invalid=True)
        if self._draw.random() < 1 / self._settings.mean_turns:
            drawn = self._draw.random()
            reward = drawn if self._reward is None else self._reward
            return StepOutcome(observation="", reward=reward, done=True)
        return StepOutcome(observation="ok")

    async def close(self) -> None:
        self.is_open = False

    async def _wait(self) -> None:
        await asyncio.sleep(
            self._settings.latency_s * self._draw.paretovariate(self._settings.tail)
        )
