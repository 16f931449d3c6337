"""The learning rate of a training step."""

from __future__ import annotations

import math

from colocate.config import TrainerConfig


def learning_rate(trainer: TrainerConfig, *, step: int, steps: int) -> float:
    """The rate that every optimizer step of training step ``step`` (0, 1, ...) of ``steps`` uses.

    Linear warm-up reaches the full rate in step ``warmup_steps - 1``. From step ``warmup_steps``
    on, ``constant`` keeps it; ``linear`` and ``cosine`` lower it so that it would be 0 in step
    ``steps``, which is never taken: the last step still learns.
    """
    if step < trainer.warmup_steps:
        return trainer.learning_rate * (step + 1) / trainer.warmup_steps
    if trainer.schedule == "constant":
        return trainer.learning_rate
    progress = min(1.0, (step - trainer.warmup_steps) / max(1, steps - trainer.warmup_steps))
    if trainer.schedule == "linear":
        return trainer.learning_rate * (1 - progress)
    return trainer.learning_rate * (1 + math.cos(math.pi * progress)) / 2
