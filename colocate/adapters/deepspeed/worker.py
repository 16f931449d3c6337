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

from colocate.adapters.deepspeed import checkpoint, wire
from colocate.adapters.deepspeed.engine import TrainingEngine, load_scorer, release_caches
from colocate.adapters.deepspeed.export import (
    Buffers,
    CudaIpcBuffers,
    Exporter,
    SharedMemoryBuffers,
)
from colocate.adapters.deepspeed.step import StepSettings, admit, train_step
from colocate.config import AlgorithmConfig, TrainerConfig
from colocate.learn.scoring import TokenScorer

COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""Ranks enter collectives together, so only a rank that hangs for good comes near it."""


class Worker:
    """One rank's engine, reference model and exporter, at one version of the weights."""

    def __init__(self, setup: wire.Setup) -> None:
        self._trainer = TrainerConfig.model_validate_json(setup.trainer)
        algorithm = AlgorithmConfig.model_validate_json(setup.algorithm)
        rank = int(os.environ["RANK"])
        self._device = join_process_group(setup, rank=rank, num_ranks=self._trainer.num_ranks)
        random.seed(setup.seed + rank)
        torch.manual_seed(setup.seed + rank)

        def scorer() -> TokenScorer:
            return load_scorer(
                setup.model_path,
                dtype=setup.dtype,
                temperature=setup.temperature,
                device=self._device,
            )

        self._engine = TrainingEngine(
            scorer(), self._trainer, dtype=setup.dtype, device=self._device
        )
        self._reference = scorer().requires_grad_(False) if algorithm.kl_coef else None
        self._settings = StepSettings(
            trainer=self._trainer,
            algorithm=algorithm,
            steps=setup.steps,
            seed=setup.seed,
            rank=rank,
            device=self._device,
        )
        buffers: Buffers = (
            CudaIpcBuffers(self._device)
            if self._device.type == "cuda"
            else SharedMemoryBuffers(setup.run_id)
        )
        self._exporter = Exporter(
            self._engine,
            bucket_bytes=self._trainer.publish_bucket_bytes,
            buffers=buffers,
            packs=rank == 0 or self._device.type == "cuda",
        )
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
                self._engine.load()
                if self._reference is not None:
                    self._reference.to(self._device)
            case wire.Offload():
                if self._reference is not None:
                    self._reference.to("cpu")
                self._engine.offload()
                release_caches()
            case wire.Save():
                checkpoint.save(
                    self._engine, Path(request.folder), trainer=self._trainer, version=self._version
                )
            case wire.Restore():
                return self._restore(Path(request.folder))
            case wire.ListWeights():
                return wire.Weights(
                    names=self._exporter.names, num_buckets=self._exporter.num_buckets
                )
            case wire.PackBucket():
                return self._exporter.pack(request.index)
            case wire.ReleaseBucket():
                self._exporter.release()
            case _:
                raise RuntimeError(f"unexpected request {type(request).__name__}")
        return wire.Done()

    def close(self) -> None:
        self._exporter.release()

    def _train(self, request: wire.Train) -> wire.Trained:
        if not self._engine.resident:
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

    def _restore(self, folder: Path) -> wire.Restored:
        try:
            version = checkpoint.check(folder, self._trainer)
        except ValueError as error:
            raise wire.Refusal(str(error)) from error
        checkpoint.restore(self._engine, folder)
        self._version = version
        return wire.Restored(version=version)


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
