"""What one rank holds, and how it answers each request."""

from __future__ import annotations

import gc
import os
import random
from datetime import timedelta
from pathlib import Path

import deepspeed
import deepspeed.ops
import torch
from pydantic import TypeAdapter

from colocate.adapters.deepspeed import checkpoint, checkpoint_files, wire
from colocate.adapters.deepspeed.buffers import Buffers, CudaIpcBuffers, SharedMemoryBuffers
from colocate.adapters.deepspeed.engine import TrainingEngine, load_scorer
from colocate.adapters.deepspeed.export import Exporter
from colocate.adapters.deepspeed.moves import FrozenReference, release_caches
from colocate.adapters.deepspeed.residency import Residency, StillHeldError
from colocate.adapters.deepspeed.score import score_prompts
from colocate.adapters.deepspeed.step import StepSettings, admit, train_step
from colocate.config import AlgorithmConfig, LoraConfig, TrainerConfig
from colocate.core.types import Part
from colocate.learn.scoring import Scorer, TokenScorer

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Ranks enter collectives together, so only a rank that hangs for good comes near it."""


class Worker:
    """One rank's engine, reference model and exporter, at one version of the weights."""

    def __init__(self, setup: wire.Setup) -> None:
        self._trainer = TrainerConfig.model_validate_json(setup.trainer)
        algorithm = AlgorithmConfig.model_validate_json(setup.algorithm)
        self._lora = TypeAdapter(LoraConfig | None).validate_json(setup.lora)
        rank = int(os.environ["RANK"])
        self._device = join_process_group(setup, rank=rank, num_ranks=self._trainer.num_ranks)
        random.seed(setup.seed + rank)
        torch.manual_seed(setup.seed + rank)

        def scorer(lora: LoraConfig | None = None) -> TokenScorer:
            return load_scorer(
                setup.model_path,
                self._trainer,
                dtype=setup.dtype,
                temperature=setup.temperature,
                fp32_head=setup.fp32_head,
                lora=lora,
                seed=setup.seed,
                device=self._device,
            )

        self._engine = TrainingEngine(
            scorer(self._lora),
            self._trainer,
            dtype=setup.dtype,
            lora=self._lora,
            device=self._device,
        )
        self._reference: Scorer | None = None
        frozen: FrozenReference | None = None
        if algorithm.kl.coef and self._lora is not None:
            self._reference = self._engine.score_without_adapters
        elif algorithm.kl.coef:
            self._reference = model = scorer().requires_grad_(False)
            frozen = FrozenReference(model, device=self._device)
        self._residency = Residency(self._engine.state, frozen, device=self._device)
        self._settings = StepSettings(
            trainer=self._trainer,
            algorithm=algorithm,
            steps=setup.steps,
            seed=setup.seed,
            rank=rank,
            device=self._device,
        )
        self._dtype = setup.dtype
        self._exporter = make_exporter(self._engine, setup, self._trainer, device=self._device)
        self._version = 0
        # What exists now lives as long as the rank: collections after each step need not walk it.
        gc.collect()
        gc.freeze()

    def handle(self, request: wire.Request) -> wire.Reply:
        """Carries a request out.

        Raises:
            Refusal: the request was wrong, and nothing has changed.
        """
        match request:
            case wire.Train():
                return self._train(request)
            case wire.Load():
                self._residency.load()
            case wire.Offload():
                return self._offload(frozenset(map(Part, request.parts)))
            case wire.ReadHoldings():
                holdings = self._residency.holdings()
                return wire.Holdings(
                    device={str(k): n for k, n in holdings.device.items()}, host=holdings.host
                )
            case wire.Collect():
                release_caches()
            case wire.Save():
                checkpoint.save(
                    self._engine,
                    Path(request.folder),
                    trainer=self._trainer,
                    lora=self._lora,
                    version=self._version,
                )
            case wire.Restore():
                return self._restore(Path(request.folder))
            case wire.ListWeights():
                return wire.Weights(
                    names=self._exporter.names,
                    num_buckets=self._exporter.num_buckets,
                    num_slots=self._exporter.num_slots,
                    vocabulary_size=self._engine.vocabulary_size,
                )
            case wire.ScorePrompts():
                return self._score(request)
            case wire.PackBucket():
                return self._exporter.pack(request.index, checksums=request.checksums)
            case wire.EndExport():
                self._exporter.rest()
            case _:
                raise RuntimeError(f"unexpected request {type(request).__name__}")
        return wire.Done()

    def close(self) -> None:
        self._exporter.release()

    def _offload(self, parts: frozenset[Part]) -> wire.Done | wire.FellShort:
        try:
            self._residency.offload(parts)
        except StillHeldError as error:
            return wire.FellShort(message=str(error))
        return wire.Done()

    def _train(self, request: wire.Train) -> wire.Trained:
        if self._residency.offloaded:
            raise wire.Refusal("the trainer is offloaded; call load before train")
        try:
            admitted = admit(
                wire.to_batch(request),
                version=self._version,
                algorithm=self._settings.algorithm,
            )
        except ValueError as error:
            raise wire.Refusal(str(error)) from error
        metrics = train_step(self._engine, self._reference, admitted, settings=self._settings)
        self._version += 1
        return wire.Trained(version=self._version, metrics=metrics)

    def _score(self, request: wire.ScorePrompts) -> wire.Scored:
        if Part.PARAMETERS in self._residency.offloaded:
            raise wire.Refusal("the trainer is offloaded; call load before score")
        logprobs = score_prompts(self._engine, wire.to_prompts(request), device=self._device)
        return wire.Scored(
            version=self._version,
            dtype=self._dtype,
            logprobs=[values.cpu().numpy().tobytes() for values in logprobs],
        )

    def _restore(self, folder: Path) -> wire.Restored:
        try:
            version = checkpoint_files.check(folder, self._trainer, self._lora)
        except ValueError as error:
            raise wire.Refusal(str(error)) from error
        self._residency.load()
        checkpoint.restore(self._engine, folder)
        self._version = version
        return wire.Restored(version=version)


def make_exporter(
    engine: TrainingEngine, setup: wire.Setup, trainer: TrainerConfig, *, device: torch.device
) -> Exporter:
    rank = torch.distributed.get_rank()
    buffers: Buffers
    if device.type == "cuda":
        buffers = CudaIpcBuffers(device)
    else:
        buffers = SharedMemoryBuffers(setup.run_id, rank=rank, num_ranks=trainer.num_ranks)
    return Exporter(
        engine,
        buffers,
        dtype=getattr(torch, setup.publish_dtype),
        bucket_bytes=trainer.bucket_bytes(device.type),
        rank=rank,
        num_ranks=trainer.num_ranks,
    )


def join_process_group(setup: wire.Setup, *, rank: int, num_ranks: int) -> torch.device:
    """Meets the other ranks over a file, not a port, which another run could hold."""
    if setup.device == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(device)
        backend = "nccl"
    else:
        device = torch.device("cpu")
        backend = "gloo"
        # Else DeepSpeed compiles its shared-memory collectives here; training uses none of them.
        deepspeed.ops.__compatible_ops__ = {}
    torch.distributed.init_process_group(
        backend,
        init_method=f"file://{setup.rendezvous}",
        rank=rank,
        world_size=num_ranks,
        timeout=COLLECTIVE_TIMEOUT,
    )
    deepspeed.init_distributed(dist_backend=backend, auto_mpi_discovery=False)
    return device
