"""What the driver needs of the world: one Protocol per collaborator, and the values they exchange.

Each port has a real adapter (``colocate.adapters``) and a simulated one (``colocate.sim``); one
contract suite (``tests/contracts``) runs against both.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol, TypedDict, runtime_checkable

from colocate.core.types import (
    BatchId,
    FinishReason,
    GroupId,
    MemorySample,
    Part,
    SleepMode,
    Span,
    TrajectoryId,
    Version,
)

WakeTag = Literal["weights", "kv_cache"]


class EngineLostError(RuntimeError):
    """A process of the engine has ended by itself: whatever it held is gone. Start a new one."""


class TrainerLostError(RuntimeError):
    """A rank has ended by itself, or its state is unknown: start all anew from a checkpoint."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationRequest:
    """One request to the engine: continue ``prompt_token_ids``.

    A parked partial is continued by a request whose prompt ends with the tokens that it had
    already sampled and whose ``max_new_tokens`` is what is left of its turn.

    Attributes:
        request_id: Unique in the life of the engine.
        prompt_token_ids: Everything before the next token, never empty.
        max_new_tokens: At least 1.
        seed: For this request's own sampler.
        temperature: 0 is greedy.
        stop_token_ids: Generation ends *after* one of these; it is kept in the output.
        stop: Generation ends after the token that completes one of these strings.
        affinity: Requests that share it share a prefix; several engines then prefer the one that
            served the last of them.
    """

    request_id: str
    prompt_token_ids: Sequence[int]
    max_new_tokens: int
    seed: int
    temperature: float
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    affinity: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """What one request produced, whole or cut off by a park.

    ``token_ids`` and ``logprobs`` have one length, which is also the sum of the lengths of
    ``spans``. Log-probabilities are natural, of the distribution that was sampled from
    (temperature applied). An aborted request carries what it had sampled, perhaps nothing.
    """

    request_id: str
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    spans: tuple[Span, ...]
    finish_reason: FinishReason
    num_cached_tokens: int = 0


class Generator(Protocol):
    """What trajectories need of an engine."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Runs one request to its end, or to the next park."""


class Inference(Protocol):
    """The generating engine. Only the driver calls it, and only as the scheduler says.

    Any call raises ``EngineLostError`` where a process of the engine has ended by itself.
    """

    async def start(self) -> None:
        """Starts the engine with the weights of ``model.path``, awake, at version 0."""

    async def generate(self, request: GenerationRequest) -> Generation:
        """Runs one request to its end, or to the next park."""

    async def park(self) -> None:
        """Aborts all requests in flight.

        On return every pending ``generate`` has returned or is about to, with its partial
        tokens, and no forward pass runs until the engine is woken.
        """

    async def resume(self) -> None:
        """Undoes ``park`` where the engine was never put to sleep (a pause only)."""

    async def sleep(self, mode: SleepMode) -> None:
        """Gives up the KV cache, and at levels 1 and 2 the weights too.

        Called again with a deeper mode it gives up what is left. Only while parked.

        Raises:
            RuntimeError: where the engine still holds what it should have given up.
        """

    async def wake(self, tag: WakeTag) -> None:
        """Takes one kind of memory back. After ``kv_cache`` the engine serves requests again.

        Raises:
            RuntimeError: where the engine still reports that kind asleep.
        """

    async def residency(self) -> Mapping[Part, int]:
        """Bytes of the device held now, by part; of the fullest device where there are several."""

    async def collect(self) -> None:
        """Collects garbage and gives what allocators keep back to the device. Only while parked."""

    def process_ids(self) -> Sequence[int]:
        """Ids of the engine's live processes, the driver's own left out."""

    async def close(self) -> None:
        """Ends the engine's processes, also such as do not answer.

        Safe to call twice, and after a failed start. It may be started again then.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingSample:
    """One finished trajectory as the trainer sees it.

    ``token_ids``, ``loss_mask``, ``logprobs`` and ``versions`` have one length: prompt, sampled
    and observation tokens in order. ``loss_mask`` is 1 exactly where the token was sampled;
    elsewhere ``logprobs`` is 0.0 and ``versions`` is -1, and neither is read. ``masked`` marks a
    trajectory that its environment called invalid: it is kept out of its group's statistics and
    bears no gradient. ``truncated`` marks one that ran out of tokens or turns. ``reward`` is as its
    environment, or the reward function, gave it: penalties are the trainer's business.
    ``origin`` is the batch that a replayed one was first trained in, and None
    where it is trained for the first time.
    """

    trajectory: TrajectoryId
    group: GroupId
    token_ids: Sequence[int]
    loss_mask: Sequence[int]
    logprobs: Sequence[float]
    versions: Sequence[int]
    reward: float
    masked: bool = False
    truncated: bool = False
    origin: BatchId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingBatch:
    """What one training step trains: whole groups, at the version the step begins with."""

    batch: BatchId
    version: Version
    samples: Sequence[TrainingSample]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """What a training step did. ``version`` is the version after it: one more than the batch's.

    ``metrics`` holds plain finite floats by name; ``docs/metrics.md`` names each.
    """

    batch: BatchId
    version: Version
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """Where one parameter lies in a bucket. ``dtype`` is torch's name, as ``"float32"``."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int
    checksum: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightBucket:
    """Several full parameters packed in one buffer that engine workers can map.

    ``handle`` says how: ``{"kind": "shm", "path": ...}`` on CPU, ``{"kind": "cuda_ipc", ...}``
    with the device's UUID on GPUs. It holds plain data only, nothing that must be unpickled.
    """

    handle: Mapping[str, Any]
    entries: tuple[TensorEntry, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """A complete set of weights that every engine worker has loaded and confirmed.

    ``seconds`` says what it took, by part; parts of the two sides overlap. ``gather`` (of shards),
    ``copy`` (into the bucket) and ``checksum`` are the slowest rank's; ``receive_checksum``,
    ``load`` and ``finish`` the slowest engine worker's. Nothing was sent where ``num_tensors`` is
    0: the engine held that version already.
    """

    version: Version
    num_tensors: int
    num_bytes: int
    seconds: Mapping[str, float] = field(default_factory=dict)


class Trainer(Protocol):
    """The optimizing side: some number of ranks that act as one.

    Any call but ``close`` raises ``TrainerLostError`` where a rank has ended by itself.
    """

    async def start(self) -> None:
        """Starts the ranks with the weights of ``model.path``, resident, at version 0."""

    async def load(self) -> None:
        """Brings every part that was offloaded back to the device."""

    async def train(self, batch: TrainingBatch) -> StepReport:
        """Takes one training step.

        Raises:
            ValueError: where the batch has no trainable token, or is not at this version.
        """

    async def offload(self, parts: Collection[Part]) -> None:
        """Moves these parts off the device; those that have left already stay where they are.

        Raises:
            RuntimeError: where the device still holds bytes of them. On CPU, where the device is
                the host, nothing can leave but gradients and what allocators keep.
        """

    async def residency(self) -> Mapping[Part, int]:
        """Bytes of the device held now, by part, counted over the tensors that hold the shards.

        Of the fullest device where there are several; on CPU the sum over ranks.
        """

    async def collect(self) -> None:
        """Collects garbage and gives what allocators keep back to the device."""

    async def save(self, folder: Path) -> None:
        """Writes the trainer's own state (parameters, optimizer, schedule, version)."""

    async def restore(self, folder: Path) -> Version:
        """Reads what ``save`` wrote; returns its version."""

    def process_ids(self) -> Sequence[int]:
        """Ids of the ranks' live processes."""

    async def close(self) -> None:
        """Ends the ranks, also such as do not answer.

        Safe to call twice, and after a failed start. It may be started again then.
        """


class WeightTransfer(Protocol):
    """Carries the trainer's weights into the engine."""

    async def publish(self, version: Version) -> Publication:
        """Streams every parameter into every engine worker and sets the engine's version.

        Prefix and KV caches are reset. Fails closed: on any error the engine must not serve.

        Raises:
            RuntimeError: names that differ, a checksum that differs, a reset that failed.
        """

    async def expect(self) -> None:
        """Has the trainer, its parameters resident, score fixed prompts, for ``verify``."""

    async def verify(self) -> None:
        """Compares the awake engine's log-probabilities of the fixed prompts with those expected.

        Raises:
            RuntimeError: they differ by more than the weights' type explains; the engine must not
                serve.
        """


class RunLogger(Protocol):
    """A tracker of experiments. Called from one thread of its own; it may block, and may raise."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Takes finite numbers by name (``colocate.loggers.names``), of one training step.

        A step may come several times, with other names; an evaluation's comes after the step.
        """

    def close(self, *, succeeded: bool) -> None:
        """Sends what is left, and tells how the run ended."""


class MemoryProbe(Protocol):
    """Reads memory as the device sees it, not as an allocator believes it."""

    provider: str
    """``"nvml"`` or ``"psutil"``; named in ``summary.json``."""

    def sample(self) -> MemorySample:
        """One reading. Cheap (milliseconds); blocks."""

    def telemetry(self) -> Mapping[str, float]:
        """What nothing is decided on but a person wants to see, by name; absent where unknown.

        As ``"gpu0.utilization"`` (percent), ``"gpu0.temperature_c"``, ``"gpu0.power_w"``,
        ``"engine.pss_bytes"``.
        """

    def release(self) -> None:
        """Returns what the probing process itself caches; then closes the probe's library."""


Role = Literal["user", "tool"]
"""Whose message an observation is, for a model with a chat template."""


class Message(TypedDict):
    """One message of a conversation, as chat templates take it."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


MESSAGES = "messages"
"""The column in which a prompt that came as a conversation has all of its messages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One row of the data set: the text the agent starts from, and its other columns.

    With a chat template, ``text`` is the user's message; ``history`` is what comes before it, as a
    message of the system.
    """

    text: str
    columns: Mapping[str, Any] = field(default_factory=dict)
    history: Sequence[Message] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutcome:
    """An environment's answer to one action.

    Attributes:
        observation: Text appended to the context; may be empty when ``done``.
        reward: Added to the trajectory's return.
        done: The episode is over.
        invalid: The environment declares the whole episode invalid (implies ``done``).
        facts: Anything worth showing a person; never read by training.
        role: Whose message the observation is, for a model with a chat template; None:
            ``environment.observation_role``.
    """

    observation: str
    reward: float = 0.0
    done: bool = False
    invalid: bool = False
    facts: Mapping[str, Any] = field(default_factory=dict)
    role: Role | None = None


@runtime_checkable
class Environment(Protocol):
    """One episode. Single use: ``reset`` once, ``step`` until done, ``close`` always.

    An attribute ``is_replayable = True``, of the class or of the object, says that the answers
    depend on prompt, seed and actions alone: a fresh environment that is reset with the same and
    given the same actions answers the same, and nothing outside of it has changed by the actions.
    A resumed run then goes on with its unfinished episodes; without it, they begin again.
    """

    async def reset(self, prompt: Prompt, seed: int) -> str:
        """Begins the episode; returns text to append to the prompt (often empty)."""

    async def step(self, action: str) -> StepOutcome:
        """Answers one action."""

    async def close(self) -> None:
        """Frees what the episode holds."""


class BlockingEnvironment(Protocol):
    """An ``Environment`` whose methods are plain functions, which may take their time.

    ``environment.runs_in`` says where they run.
    """

    def reset(self, prompt: Prompt, seed: int) -> str:
        """Begins the episode; returns text to append to the prompt (often empty)."""

    def step(self, action: str) -> StepOutcome:
        """Answers one action."""

    def close(self) -> None:
        """Frees what the episode holds."""


class EnvironmentFactory(Protocol):
    def __call__(self) -> Environment:
        """A fresh environment for one episode."""


class PromptSource(Protocol):
    """The stream of prompts. Reading is by position, so the cursor is the only state."""

    def prompt(self, position: GroupId) -> Prompt:
        """The prompt at a position of the stream; the stream never ends (epochs repeat)."""
