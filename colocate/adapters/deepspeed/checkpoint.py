"""The trainer's part of a checkpoint: DeepSpeed's own files, and what else a resume needs."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

from colocate.adapters.deepspeed.checkpoint_files import TAG, write_description
from colocate.adapters.deepspeed.engine import TrainingEngine
from colocate.adapters.deepspeed.moves import release_caches
from colocate.config import LoraConfig, TrainerConfig


def save(
    engine: TrainingEngine,
    folder: Path,
    *,
    trainer: TrainerConfig,
    lora: LoraConfig | None = None,
    version: int,
) -> None:
    """Writes parameters, optimizer state, random state and version. All ranks call it together.

    Parameters that are not trained are among them, so that a checkpoint is whole by itself.
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
        write_description(folder, trainer=trainer, lora=lora, version=version)
    torch.distributed.barrier()


def restore(engine: TrainingEngine, folder: Path) -> None:
    """Reads what ``save`` wrote, after ``check``, into a resident engine that has not trained yet.

    DeepSpeed unpickles its files: restore only folders that you trust.
    """
    path, _ = engine.deepspeed.load_checkpoint(str(folder), tag=TAG)
    if path is None:
        raise RuntimeError(f"DeepSpeed found no checkpoint in {folder / TAG}")
    rank = torch.distributed.get_rank()
    engine.state.forget_copies()
    _set_random_state(torch.load(folder / f"random-rank{rank}.pt", weights_only=True))


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
