"""Trainer ranks with adapters that live through swaps, checkpoints and a fresh start.

``python lora_lives.py MODEL FOLDER RESULT RANK NUM_RANKS``. All cases one after another in one set
of processes: starting ranks takes far longer than a step.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path

os.environ |= {
    "DS_ACCELERATOR": "cpu",
    "RANK": sys.argv[4],
    "LOCAL_RANK": sys.argv[4],
    "WORLD_SIZE": sys.argv[5],
    "GLOO_SOCKET_IFNAME": "lo",
    "OMP_NUM_THREADS": "1",
}

import deepspeed
import deepspeed.ops
import torch
from deepspeed_support import ALGORITHM, SEED, STEPS, TEMPERATURE, make_batch, trainer_config

from colocate.adapters.checksum import tensor_checksum
from colocate.adapters.deepspeed import checkpoint, checkpoint_files
from colocate.adapters.deepspeed.buffers import SharedMemoryBuffers
from colocate.adapters.deepspeed.engine import TrainingEngine, load_scorer
from colocate.adapters.deepspeed.export import Exporter
from colocate.adapters.deepspeed.moves import flat, move_together
from colocate.adapters.deepspeed.residency import Residency
from colocate.adapters.deepspeed.step import StepSettings, admit, train_step
from colocate.config import LoraConfig
from colocate.core.types import TRAINER_PARTS, Part

MODEL, FOLDER, RESULT, RANK, NUM_RANKS = sys.argv[1:]
CPU = torch.device("cpu")
LORA = LoraConfig(rank=3, alpha=12.0, target_modules=("q_proj", "o_proj", "up_proj", "down_proj"))
BATCHES = [make_batch(0), make_batch(1, lag=1), make_batch(2, groups=1)]

CASES = {
    "1": [
        ("float32", 0, False),
        ("float32", 1, True),
        ("float32", 2, False),
        ("float32", 3, False),
        ("float32", 3, True),
        ("bfloat16", 1, False),
        ("bfloat16", 3, True),
    ],
    "2": [("float32", 1, False), ("float32", 3, True)],
}
"""By number of ranks: type, ZeRO stage, and whether layers are computed again."""


@dataclass
class Life:
    """What one case showed. ``published``: after each step, the first before any."""

    published: list[dict[str, torch.Tensor]] = field(default_factory=list)
    offloaded: list[dict[str, torch.Tensor]] = field(default_factory=list)
    restored: list[dict[str, torch.Tensor]] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    norms: list[float] = field(default_factory=list)
    first_factors: dict[str, torch.Tensor] = field(default_factory=dict)
    held: list[dict[str, int]] = field(default_factory=list)
    trained: list[str] = field(default_factory=list)
    optimized: int = 0
    refusal: str = ""


class Rank:
    """What ``Worker`` holds of one rank, without the socket."""

    def __init__(self, dtype: str, stage: int, *, lean: bool) -> None:
        # Micro-batches of a few trajectories: gradients are accumulated over several.
        self.trainer = trainer_config(stage, int(NUM_RANKS), 60).model_copy(
            update={"gradient_checkpointing": lean}
        )
        scorer = load_scorer(
            MODEL,
            self.trainer,
            dtype=dtype,
            temperature=TEMPERATURE,
            lora=LORA,
            seed=SEED,
            device=CPU,
        )
        self.engine = TrainingEngine(scorer, self.trainer, dtype=dtype, lora=LORA, device=CPU)
        self.residency = Residency(self.engine.state, None, device=CPU)
        self._settings = StepSettings(
            trainer=self.trainer,
            algorithm=ALGORITHM,
            steps=STEPS,
            seed=SEED,
            rank=int(RANK),
            device=CPU,
        )
        self._exporter = Exporter(
            self.engine,
            SharedMemoryBuffers(f"lora{os.getppid()}", rank=int(RANK), num_ranks=int(NUM_RANKS)),
            dtype=getattr(torch, dtype),
            bucket_bytes=10_000,
            rank=int(RANK),
            num_ranks=int(NUM_RANKS),
        )

    def step(self, version: int) -> dict[str, float]:
        batch = admit(BATCHES[version], version=version, algorithm=ALGORITHM)
        reference = self.engine.score_without_adapters
        return train_step(self.engine, reference, batch, settings=self._settings)

    def published(self) -> dict[str, torch.Tensor]:
        """As an engine worker reads it, where this rank can say where it is."""
        tensors = {}
        for index in range(self._exporter.num_buckets):
            packed = self._exporter.pack(index, checksums=True)
            torch.distributed.barrier()
            if packed.handle is not None:
                raw = torch.frombuffer(
                    bytearray(Path(packed.handle["path"]).read_bytes()), dtype=torch.uint8
                )
                for entry in packed.entries:
                    part = raw[entry.offset : entry.offset + entry.num_bytes].clone()
                    tensor = part.view(getattr(torch, entry.dtype)).view(entry.shape)
                    assert tensor_checksum(tensor) == entry.checksum, entry.name
                    tensors[entry.name] = tensor
            torch.distributed.barrier()
        self._exporter.release()
        return tensors

    def relocate(self) -> None:
        """Parameters go elsewhere in memory, as they do on their way off a GPU and back."""
        state = self.engine.state
        views = state.trained_views() if self.trainer.zero_stage == 3 else []
        before = {tensor.untyped_storage().data_ptr() for tensor in views}
        move_together([*views, *state.frozen_tensors()], torch.clone)
        held = flat(state.tensors()[Part.PARAMETERS])
        assert not before & {tensor.untyped_storage().data_ptr() for tensor in held}


def live(dtype: str, stage: int, lean: bool) -> Life:
    rank, life = Rank(dtype, stage, lean=lean), Life()
    for name, weight in rank.engine.weights().items():
        if weight.factors is not None:
            life.first_factors[name] = rank.engine.full_parameter(weight.factors[0]).clone()
    life.trained = [n for n, p in rank.engine.named_parameters() if p.requires_grad]
    life.published.append(rank.published())
    for version in range(2):
        metrics = rank.step(version)
        life.losses.append(metrics["loss"])
        life.norms.append(metrics["grad_norm"])
        life.published.append(rank.published())
        life.held.append(rank.residency.holdings().device)
        for parts in (TRAINER_PARTS - {Part.PARAMETERS}, {Part.PARAMETERS}):
            rank.residency.offload(parts)
        life.offloaded.append(rank.published())
        rank.residency.load()
        rank.relocate()
    groups = rank.engine.deepspeed.optimizer.param_groups
    life.optimized = sum(each.numel() for group in groups for each in group["params"])
    folder = Path(FOLDER) / f"{NUM_RANKS}-{dtype}-{stage}-{lean}"
    folder.mkdir(exist_ok=True)
    checkpoint.save(rank.engine, folder, trainer=rank.trainer, lora=LORA, version=2)
    life.published.append((rank.step(2), rank.published())[1])
    rank.engine.deepspeed.destroy()

    again = Rank(dtype, stage, lean=lean)
    try:
        checkpoint_files.check(folder, again.trainer, LORA.model_copy(update={"rank": 4}))
    except ValueError as error:
        life.refusal = str(error)
    assert checkpoint_files.check(folder, again.trainer, LORA) == 2
    checkpoint.restore(again.engine, folder)
    life.restored.append(again.published())
    life.restored.append((again.step(2), again.published())[1])
    again.engine.deepspeed.destroy()
    return life


def main() -> None:
    deepspeed.ops.__compatible_ops__ = {}
    torch.distributed.init_process_group(
        "gloo",
        init_method=f"file://{FOLDER}/rendezvous{NUM_RANKS}",
        rank=int(RANK),
        world_size=int(NUM_RANKS),
    )
    deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
    lives = {case: vars(live(*case)) for case in CASES[NUM_RANKS]}
    if RANK == "0":
        torch.save(lives, Path(RESULT))


if __name__ == "__main__":
    main()
