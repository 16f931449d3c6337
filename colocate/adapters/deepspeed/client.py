"""The trainer as the driver sees it. Imports neither torch nor DeepSpeed."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from colocate.adapters.deepspeed import wire
from colocate.adapters.deepspeed.processes import RankFailedError, RankPool
from colocate.adapters.deepspeed.shared_memory import remove_files
from colocate.config import AlgorithmConfig, TrainerConfig
from colocate.core.types import Version
from colocate.ports import StepReport, TensorEntry, TrainingBatch, WeightBucket

_Reply = TypeVar("_Reply", bound=wire.Message)


class DeepSpeedTrainer:
    """``ports.Trainer`` over DeepSpeed ranks, and the source of weights for publication.

    Calls do not overlap: each waits for the one before. After a failure, or a call that was
    cancelled half-way, the ranks' state is unknown, and every call but ``close`` raises.

    Args:
        model_path: A Hugging Face model folder.
        dtype: ``"float32"`` or ``"bfloat16"``.
        temperature: Of the rollout's sampling; log-probabilities are of logits divided by it.
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
        temperature: float,
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
        self._temperature = temperature
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
            temperature=self._temperature,
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

    async def offload(self) -> None:
        """Moves the whole state off the device. Weights can be exported all the same."""
        await self._ask(wire.Offload(), wire.Done)

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
        """Names of all parameters, as Hugging Face has them; a tied tensor has one name."""
        first, *_ = await self._ask(wire.ListWeights(), wire.Weights)
        return first.names

    async def export_buckets(self) -> AsyncGenerator[WeightBucket, None]:
        """Yields every parameter, in full, packed in buckets.

        A bucket is valid until the next is asked for, or the generator is closed. Close it
        (``contextlib.aclosing``) where it is not read to its end.
        """
        first, *_ = await self._ask(wire.ListWeights(), wire.Weights)
        try:
            for index in range(first.num_buckets):
                yield to_bucket(await self._ask(wire.PackBucket(index=index), wire.Packed))
        finally:
            if self._broken is None:
                await self._ask(wire.ReleaseBucket(), wire.Done)

    def process_ids(self) -> Sequence[int]:
        """Ids of the ranks' live processes."""
        return [] if self._pool is None else self._pool.process_ids()

    async def close(self) -> None:
        """Ends the ranks and removes what they may have left. Safe to call twice."""
        if self._pool is not None:
            await self._pool.close()
        remove_files(self._run_id)
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    async def _ask(self, request: wire.Message, expected: type[_Reply]) -> list[_Reply]:
        async with self._turn:
            if self._pool is None:
                raise RuntimeError("the trainer has not been started")
            if self._broken is not None:
                raise RankFailedError(
                    f"the trainer's state is unknown since an earlier failure: {self._broken}"
                ) from self._broken
            try:
                replies = await self._pool.ask(request)
            except BaseException as error:
                self._broken = error
                raise
        for reply in replies:
            if isinstance(reply, wire.Refused):
                raise ValueError(reply.message)
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
