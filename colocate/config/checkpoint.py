"""What is kept on the disk to resume from."""

from __future__ import annotations

from pydantic import Field

from colocate.config.types import NonNegativeInt, PositiveInt, Section


class CheckpointConfig(Section):
    every_steps: NonNegativeInt = Field(0, description="0: only at the end, or on a signal.")
    keep: PositiveInt = Field(2, description="Older checkpoints are deleted.")
    keep_best: bool = Field(
        True,
        description="But not the best: by pass@1 where `eval.every_steps` is above 0, when each "
        "evaluation has a checkpoint; else by the mean reward of the steps since the checkpoint "
        "before.",
    )
