"""What is kept on the disk to resume from."""

from __future__ import annotations

from pydantic import Field

from colocate.config.types import NonNegativeFloat, NonNegativeInt, PositiveInt, Section


class CheckpointConfig(Section):
    every_steps: NonNegativeInt = Field(
        0, description="0 here and in `checkpoint.every_s`: only at the end, or on a signal."
    )
    every_s: NonNegativeFloat = Field(
        0.0,
        description="Seconds since the one before, or since the beginning; it is written at the "
        "next swap. 0: not by time. Both may be given.",
    )
    keep: PositiveInt = Field(
        2,
        description="Older checkpoints are deleted. With 1, the one before stays until there is "
        "a newer one than the last: a run may have to go back to it.",
    )
    keep_best: bool = Field(
        True,
        description="But not the best: by pass@1 where `eval.every_steps` is above 0, when each "
        "evaluation has a checkpoint; else by the mean reward of the steps since the checkpoint "
        "before, of the last 128 at most.",
    )
