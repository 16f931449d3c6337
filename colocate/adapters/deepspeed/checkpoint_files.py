"""What the trainer's part of a checkpoint is made of, for those who read it without DeepSpeed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from colocate.config import LoraConfig, TrainerConfig

TAG = "deepspeed"
DESCRIPTION = "trainer.json"
FORMAT = 1


def write_description(
    folder: Path, *, trainer: TrainerConfig, lora: LoraConfig | None, version: int
) -> None:
    """What ``read_description`` reads."""
    layout = {field.rpartition(".")[2]: value for field, value in _layout(trainer, lora)}
    description = {"format": FORMAT, "version": version, **layout}
    (folder / DESCRIPTION).write_text(json.dumps(description))


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


def _layout(trainer: TrainerConfig, lora: LoraConfig | None) -> list[tuple[str, Any]]:
    """Fields of the configuration that checkpoint and run must agree on, as JSON has them."""
    return [
        ("trainer.zero_stage", trainer.zero_stage),
        ("trainer.num_ranks", trainer.num_ranks),
        ("model.lora", None if lora is None else lora.model_dump(mode="json")),
    ]


def _shown(value: Any) -> str:
    return "null" if value is None else str(value)
