"""A trainer, an engine and a probe, as a run would make them, for the parts that need them."""

from __future__ import annotations

import os
import random
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from colocate.adapters.deepspeed.client import DeepSpeedTrainer
from colocate.adapters.memory.factory import make_probe
from colocate.config import AlgorithmConfig, EmbeddedModelConfig, KlConfig, TrainerConfig
from colocate.core.types import BatchId, GroupId, TrajectoryId, Version
from colocate.embedded.model import build_embedded_model
from colocate.ports import MemoryProbe, TrainingBatch, TrainingSample
from colocate.supervision.guard import RunGuard

MAX_MODEL_LEN = 512
GROUPS, GROUP_SIZE, TOKENS = 2, 4, 32

SHAPES: Mapping[str, EmbeddedModelConfig] = {
    # Large enough that a GPU's rounding of allocations does not matter.
    "cuda": EmbeddedModelConfig(
        hidden_size=1024,
        num_layers=8,
        intermediate_size=4096,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=64,
        initializer_range=0.02,
    ),
    "cpu": EmbeddedModelConfig(),
}


@dataclass(frozen=True, slots=True)
class Place:
    """Where a part's adapters live."""

    device: str
    folder: Path
    model: Path
    run_id: str
    socket_dir: Path
    dtype: str


@contextmanager
def guarded_place(device: str, folder: Path) -> Iterator[Place]:
    """A model, and a guard that lets no process outlive the part."""
    run_id = uuid.uuid4().hex[:12]
    socket_dir = Path(tempfile.mkdtemp(prefix=f"colocate-{run_id}-"))
    dtype = "bfloat16" if device == "cuda" else "float32"
    model = build_embedded_model(
        folder / "model", SHAPES[device], seed=0, dtype=dtype, max_model_len=MAX_MODEL_LEN
    )
    with RunGuard(run_id, f"colocate-{run_id}", socket_dir, log_path=folder / "reaper.log"):
        yield Place(device, folder, model, run_id, socket_dir, dtype)


def make_trainer(
    place: Place, *, zero_stage: Literal[0, 1, 2, 3], kl_coef: float = 0.0
) -> DeepSpeedTrainer:
    """Not started. With ``kl_coef`` it has a reference model too."""
    return DeepSpeedTrainer(
        place.model,
        TrainerConfig(zero_stage=zero_stage, learning_rate=1e-4),
        AlgorithmConfig(group_size=GROUP_SIZE, groups_per_step=GROUPS, kl=KlConfig(coef=kl_coef)),
        dtype=place.dtype,
        temperature=1.0,
        steps=100,
        seed=0,
        device=place.device,
        log_dir=place.folder,
        run_id=place.run_id,
        socket_dir=place.socket_dir,
    )


def probe_of(place: Place, tenants: Mapping[str, Callable[[], Sequence[int]]]) -> MemoryProbe:
    return make_probe(
        "cuda" if place.device == "cuda" else "cpu", tenants, None, environment=os.environ
    )


def make_batch(version: int, vocabulary: int) -> TrainingBatch:
    """Trajectories of one turn, made up; the first half of each is its prompt."""
    draw = random.Random(version)
    half = TOKENS // 2
    return TrainingBatch(
        batch=BatchId(version),
        version=Version(version),
        samples=[
            TrainingSample(
                trajectory=TrajectoryId(index),
                group=GroupId(index // GROUP_SIZE),
                token_ids=[draw.randrange(vocabulary) for _ in range(TOKENS)],
                loss_mask=[0] * half + [1] * half,
                logprobs=[0.0] * half + [-3.0] * half,
                versions=[-1] * half + [version] * half,
                reward=draw.random(),
            )
            for index in range(GROUPS * GROUP_SIZE)
        ],
    )


async def checksums(trainer: DeepSpeedTrainer) -> dict[str, str]:
    """Of every full parameter, as it would be published."""
    found = {}
    async with aclosing(trainer.export_buckets()) as buckets:
        async for bucket in buckets:
            found.update({entry.name: entry.checksum for entry in bucket.entries})
    return found
