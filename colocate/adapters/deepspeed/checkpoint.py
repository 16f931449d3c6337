"""The trainer's part of a checkpoint: DeepSpeed's own files, and what else a resume needs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch

from colocate.adapters.deepspeed.engine import TrainingEngine
from colocate.adapters.deepspeed.moves import release_caches
from colocate.config import TrainerConfig

TAG = "deepspeed"
DESCRIPTION = "trainer.json"
FORMAT = 1


def save(engine: TrainingEngine, folder: Path, *, trainer: TrainerConfig, version: int) -> None:
    """Writes parameters, optimizer state, random state and version. All ranks call it together.

    State that is offloaded is brought back for as long as it takes, and put off again.
    """
    offloaded = engine.state.offloaded
    engine.state.load()
    try:
        engine.deepspeed.save_checkpoint(str(folder), tag=TAG, save_latest=False)
    finally:
        if offloaded:
            engine.state.settle(offloaded)
            engine.state.offload(offloaded)
            release_caches()
    rank = torch.distributed.get_rank()
    torch.save(_random_state(), folder / f"random-rank{rank}.pt")
    if rank == 0:
        description = {"format": FORMAT, "version": version, **_layout(trainer)}
        (folder / DESCRIPTION).write_text(json.dumps(description))
    torch.distributed.barrier()


def check(folder: Path, trainer: TrainerConfig) -> int:
    """The version of a checkpoint that a trainer of this configuration can restore.

    Raises:
        ValueError: where the folder is no checkpoint, or was written by a trainer of another
            layout, whose shards do not fit.
    """
    description = read_description(folder)
    for name, value in _layout(trainer).items():
        if description.get(name) != value:
            raise ValueError(
                f"checkpoint {folder} was written with trainer.{name}={description.get(name)}, "
                f"but this run has trainer.{name}={value}; its shards fit only the same"
            )
    return int(description["version"])


def restore(engine: TrainingEngine, folder: Path) -> None:
    """Reads what ``save`` wrote, after ``check``, into a resident engine that has not trained yet.

    DeepSpeed unpickles its files: restore only folders that you trust.
    """
    path, _ = engine.deepspeed.load_checkpoint(str(folder), tag=TAG)
    if path is None:
        raise RuntimeError(f"DeepSpeed found no checkpoint in {folder / TAG}")
    rank = torch.distributed.get_rank()
    _set_random_state(torch.load(folder / f"random-rank{rank}.pt", weights_only=True))


def read_description(folder: Path) -> dict[str, Any]:
    """What kind of trainer wrote a checkpoint, and at which version.

    Raises:
        ValueError: where the folder holds none, or one of another format.
    """
    path = folder / DESCRIPTION
    if not path.is_file():
        raise ValueError(f"{folder} holds no trainer checkpoint: {DESCRIPTION} is missing")
    description: dict[str, Any] = json.loads(path.read_text())
    if description.get("format") != FORMAT:
        raise ValueError(
            f"{path} has format {description.get('format')}, but this program reads {FORMAT}"
        )
    return description


def _layout(trainer: TrainerConfig) -> dict[str, int]:
    return {"zero_stage": trainer.zero_stage, "num_ranks": trainer.num_ranks}


def _random_state() -> dict[str, Any]:
    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def _set_random_state(state: dict[str, Any]) -> None:
    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state(state["cuda"])
