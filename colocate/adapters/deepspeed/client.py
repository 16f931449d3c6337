"""The trainer as the driver sees it. Imports neither torch nor DeepSpeed."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, Collection, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

from colocate.adapters.deepspeed import wire
from colocate.adapters.deepspeed.processes import RankDiedError, RankFailedError, RankPool
from colocate.adapters.deepspeed.shared_memory import remove_files
from colocate.adapters.verification import ScoredPrompts
from colocate.config import AlgorithmConfig, LoraConfig, TrainerConfig
from colocate.core.types import TRAINER_PARTS, Part, Version
from colocate.ports import StepReport, TensorEntry, TrainingBatch, WeightBucket

_Reply = TypeVar("_Reply", bound=wire.Message)


class DeepSpeedTrainer:
    """``ports.Trainer`` over DeepSpeed ranks, and the source of weights for publication.

    Calls do not overlap: each waits for the one before. After a failure, or a call that was
    cancelled half-way, the ranks' state is unknown, and every call but ``close`` raises.

    Args:
        model_path: A Hugging Face model folder.
        dtype: ``"float32"`` or ``"bfloat16"``.
        publish_dtype: What parameters are cast to for the engine; None: nothing else.
        temperature: Of the rollout's sampling; log-probabilities are of logits divided by it.
        fp32_head: The output head computes in float32, as the engine's does.
        lora: Adapters that are trained in place of the weights, and merged into them for the
            engine; None: the weights are trained.
        steps: Training steps of the whole run, over which the learning rate is scheduled.
        device: ``"cpu"`` or ``"cuda"``.
        log_dir: Where each rank's output goes.
        run_id: Marks the ranks' processes (environment variable ``COLOCATE_RUN_ID``) and their
            files in ``/dev/shm``.
        socket_dir: A folder for the sockets' own, private one; short, since a socket's path may
            have 107 bytes.

    Raises:
        ValueError: for ``zero_stage`` 0 in bfloat16, whose state DeepSpeed cannot offload, and
            for a temperature of 0, under which no token has a log-probability.
    """

    def __init__(
        self,
        model_path: str | Path,
        trainer: TrainerConfig,
        algorithm: AlgorithmConfig,
        *,
        dtype: str,
        publish_dtype: str | None = None,
        temperature: float,
        fp32_head: bool = False,
        lora: LoraConfig | None = None,
        steps: int,
        seed: int,
        device: str,
        log_dir: Path,
        run_id: str,
        socket_dir: Path | None = None,
    ) -> None:
        if trainer.zero_stage == 0 and dtype != "float32":
            raise ValueError(
                f"trainer.zero_stage=0 needs model.dtype=float32, but it is {dtype}: DeepSpeed "
                f"cannot offload the state of that pair; take trainer.zero_stage=1"
            )
        if temperature <= 0:
            raise ValueError(
                f"rollout.temperature must be above 0 to train, but is {temperature}: greedy "
                f"tokens have no log-probability"
            )
        self._model_path = str(model_path)
        self._trainer = trainer
        self._algorithm = algorithm
        self._dtype = dtype
        self._publish_dtype = publish_dtype or dtype
        self._temperature = temperature
        self._fp32_head = fp32_head
        self._lora = lora
        self._steps = steps
        self._seed = seed
        self._device = device
        self._log_dir = log_dir
        self._run_id = run_id
        self._socket_dir = socket_dir
        self._folder: Path | None = None
        self._pool: RankPool | None = None
        self._turn = asyncio.Lock()
        self._broken: BaseException | None = None
        self._export_seconds: dict[str, float] = {}

    async def start(self) -> None:
        """Starts the ranks with the weights of ``model_path``, resident, at version 0.

        Raises:
            RankFailedError: a rank died or could not build its engine.
        """
        if self._pool is not None:
            raise RuntimeError("the trainer was started before")
        self._folder = Path(tempfile.mkdtemp(prefix="colocate-", dir=self._socket_dir))
        self._pool = RankPool(
            num_ranks=self._trainer.num_ranks,
            run_id=self._run_id,
            device=self._device,
            folder=self._folder,
            log_dir=self._log_dir,
        )
        await self._pool.start()
        setup = wire.Setup(
            model_path=self._model_path,
            trainer=self._trainer.model_dump_json().encode(),
            algorithm=self._algorithm.model_dump_json().encode(),
            dtype=self._dtype,
            publish_dtype=self._publish_dtype,
            temperature=self._temperature,
            fp32_head=self._fp32_head,
            lora=b"null" if self._lora is None else self._lora.model_dump_json().encode(),
            steps=self._steps,
            seed=self._seed,
            device=self._device,
            run_id=self._run_id,
            rendezvous=str(self._folder / "rendezvous"),
        )
        await self._ask(setup, wire.Done)

    async def load(self) -> None:
        """Brings offloaded state back to the device."""
        await self._ask(wire.Load(), wire.Done)

    async def offload(self, parts: Collection[Part]) -> None:
        """Moves parts off the device. Weights can be exported all the same.

        Raises:
            ValueError: a part that no trainer has.
            RuntimeError: a device still holds bytes of them. The ranks go on: ask again after
                ``collect``, or ``load``.
            RankFailedError: a rank failed or died.
        """
        foreign = sorted(set(parts) - TRAINER_PARTS)
        if foreign:
            raise ValueError(f"a trainer has no {', '.join(foreign)} that it could offload")
        await self._ask(wire.Offload(parts=sorted(parts)), wire.Done)

    async def residency(self) -> Mapping[Part, int]:
        """Bytes on the device by part, every part of a trainer: on CPU of all ranks together, on
        GPUs of the fullest."""
        held = [
            {part: reply.device[part] for part in sorted(TRAINER_PARTS)}
            for reply in await self._ask(wire.ReadHoldings(), wire.Holdings)
        ]
        if self._device == "cpu":
            return {part: sum(each[part] for each in held) for part in sorted(TRAINER_PARTS)}
        return max(held, key=lambda each: sum(each.values()))

    async def host_bytes(self) -> int:
        """Bytes of the machine's memory that the ranks hold beside their GPUs, most of it pinned.

        0 on CPU, where ``residency`` counts everything.
        """
        return sum(reply.host for reply in await self._ask(wire.ReadHoldings(), wire.Holdings))

    async def collect(self) -> None:
        """Collects garbage and gives what allocators keep back to the device."""
        await self._ask(wire.Collect(), wire.Done)

    async def train(self, batch: TrainingBatch) -> StepReport:
        """Takes one training step.

        Raises:
            ValueError: the batch has no trainable token, is not at this version, or is
                malformed; or the trainer is offloaded. Nothing has changed, and the next call
                may follow.
            RankFailedError: a rank failed or died.
        """
        request = await asyncio.to_thread(wire.to_train, batch)
        first, *_ = await self._ask(request, wire.Trained)
        return StepReport(batch=batch.batch, version=Version(first.version), metrics=first.metrics)

    async def save(self, folder: Path) -> None:
        """Writes the trainer's state into a folder, which is made if missing."""
        await self._ask(wire.Save(folder=_on_the_wire(folder)), wire.Done)

    async def restore(self, folder: Path) -> Version:
        """Reads what ``save`` wrote, before the first training step; returns its version.

        Raises:
            ValueError: the folder holds no checkpoint, or one of another ZeRO stage or number of
                ranks. Nothing has changed.
        """
        first, *_ = await self._ask(wire.Restore(folder=_on_the_wire(folder)), wire.Restored)
        return Version(first.version)

    async def weight_names(self) -> Sequence[str]:
        """Names of all weights, as Hugging Face has them; a tied tensor has one name."""
        first, *_ = await self._ask(wire.ListWeights(), wire.Weights)
        return first.names

    async def vocabulary_size(self) -> int:
        """Number of tokens that the model has an embedding for."""
        first, *_ = await self._ask(wire.ListWeights(), wire.Weights)
        return first.vocabulary_size

    async def score(self, prompts: Sequence[Sequence[int]]) -> ScoredPrompts:
        """Log-probabilities of each prompt's tokens but the first, at temperature 1.

        Raises:
            ValueError: the trainer is offloaded.
        """
        first, *_ = await self._ask(wire.to_score_prompts(prompts), wire.Scored)
        return ScoredPrompts(
            version=Version(first.version),
            dtypes=(first.dtype, self._publish_dtype),
            prompts=prompts,
            logprobs=wire.to_logprobs(first),
        )

    async def export_buckets(self, *, checksums: bool = True) -> AsyncGenerator[WeightBucket, None]:
        """Yields every weight, in full, packed in buckets; adapters are merged.

        A bucket is valid until the next is asked for, or the generator is closed. Close it
        (``contextlib.aclosing``) where it is not read to its end. While one is read the next are
        packed, as many as there is memory for.
        """
        first, *_ = await self._ask(wire.ListWeights(), wire.Weights)
        self._export_seconds = {}
        waiting = iter(range(first.num_buckets))
        packing: deque[asyncio.Task[WeightBucket]] = deque()
        try:
            for _ in range(first.num_buckets):
                for index in islice(waiting, first.num_slots - len(packing)):
                    packing.append(asyncio.create_task(self._pack(index, checksums)))
                yield await packing.popleft()
        finally:
            # Cancelled, they would leave answers behind that the next question would take.
            await asyncio.gather(*packing, return_exceptions=True)
            if self._broken is None:
                await self._ask(wire.EndExport(), wire.Done)

    async def _pack(self, index: int, checksums: bool) -> WeightBucket:
        request = wire.PackBucket(index=index, checksums=checksums)
        replies = await self._ask(request, wire.Packed)
        for part in {part for reply in replies for part in reply.seconds}:
            slowest = max(reply.seconds.get(part, 0.0) for reply in replies)
            self._export_seconds[part] = self._export_seconds.get(part, 0.0) + slowest
        return to_bucket(replies)

    def export_seconds(self) -> Mapping[str, float]:
        """What the last export took so far, by part, of the slowest rank of each bucket."""
        return dict(self._export_seconds)

    def process_ids(self) -> Sequence[int]:
        """Ids of the ranks' live processes."""
        return [] if self._pool is None else self._pool.process_ids()

    async def close(self) -> None:
        """Ends the ranks and removes what they may have left. Safe to call twice.

        It can be started again then.
        """
        if self._pool is not None:
            await self._pool.close()
        self._pool, self._broken = None, None
        remove_files(self._run_id)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    async def _ask(self, request: wire.Message, expected: type[_Reply]) -> list[_Reply]:
        async with self._turn:
            if self._pool is None:
                raise RuntimeError("the trainer has not been started")
            if self._broken is not None:
                # What a rank itself reports comes again; what was broken off is worth a new start.
                reported = isinstance(self._broken, RankFailedError)
                is_lost = isinstance(self._broken, RankDiedError) or not reported
                raise (RankDiedError if is_lost else RankFailedError)(
                    f"the trainer's state is unknown since an earlier failure: "
                    f"{self._broken or type(self._broken).__name__}"
                ) from self._broken
            try:
                replies = await self._pool.ask(request)
            except BaseException as error:
                self._broken = error
                raise
        for rank, reply in enumerate(replies):
            if isinstance(reply, wire.Refused):
                raise ValueError(reply.message)
            if isinstance(reply, wire.FellShort):
                raise RuntimeError(f"trainer rank {rank}: {reply.message}")
        matching: list[_Reply] = [reply for reply in replies if isinstance(reply, expected)]
        if len(matching) != len(replies):
            raise RankFailedError(
                f"{type(request).__name__} was answered by {[type(r).__name__ for r in replies]}"
            )
        return matching


def _on_the_wire(folder: Path) -> str:
    """Absolute, since ranks need not share the driver's working directory."""
    return str(folder.absolute())


def to_bucket(replies: Sequence[wire.Packed]) -> WeightBucket:
    """One bucket from the ranks' replies: on GPUs, each rank packed one on its own device."""
    packed = [reply for reply in replies if reply.handle is not None]
    handle: dict[str, Any] = dict(packed[0].handle or {})
    if handle["kind"] == "cuda_ipc":
        handle["devices"] = {
            uuid: fields
            for reply in packed
            for uuid, fields in (reply.handle or {})["devices"].items()
        }
    return WeightBucket(
        handle=handle,
        entries=tuple(
            TensorEntry(
                name=entry.name,
                dtype=entry.dtype,
                shape=tuple(entry.shape),
                offset=entry.offset,
                num_bytes=entry.num_bytes,
                checksum=entry.checksum,
            )
            for entry in packed[0].entries
        ),
    )
