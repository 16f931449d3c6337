"""The trainer's part of a checkpoint: DeepSpeed's own files, and what else a resume needs."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch

from colocate.adapters.deepspeed.engine import TrainingEngine
from colocate.adapters.deepspeed.moves import release_caches
from colocate.config import LoraConfig, TrainerConfig

TAG = "deepspeed"
DESCRIPTION = "trainer.json"
FORMAT = 1


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
        layout = {field.rpartition(".")[2]: value for field, value in _layout(trainer, lora)}
        description = {"format": FORMAT, "version": version, **layout}
        (folder / DESCRIPTION).write_text(json.dumps(description))
    torch.distributed.barrier()


def check(folder: Path, trainer: TrainerConfig, lora: LoraConfig | None = None) -> int:
    """The version of a checkpoint that a trainer of this configuration can restore.

    Raises:
        ValueError: where the folder is no checkpoint, or was written by a trainer of another
            layout, whose shards do not fit.
    """
    description = read_description(folder)
    for field, value in _layout(trainer, lora):
        written = description.get(field.rpartition(".")[2])
        if written != value:
            raise ValueError(
                f"checkpoint {folder} was written with {field}={_shown(written)}, but this run "
                f"has {field}={_shown(value)}; its shards fit only the same"
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
    engine.state.forget_copies()
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


def _layout(trainer: TrainerConfig, lora: LoraConfig | None) -> list[tuple[str, Any]]:
    """Fields of the configuration that checkpoint and run must agree on, as JSON has them."""
    return [
        ("trainer.zero_stage", trainer.zero_stage),
        ("trainer.num_ranks", trainer.num_ranks),
        ("model.lora", None if lora is None else lora.model_dump(mode="json")),
    ]


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)


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
