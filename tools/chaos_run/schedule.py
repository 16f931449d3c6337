"""Which faults, when: drawn from a seed before the run begins."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from random import Random
from typing import Literal, get_args

Target = Literal["engine", "rank", "driver"]

SIGNALS = (signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP)


@dataclass(frozen=True, slots=True)
class Fault:
    """``after_step``: the run's step whose end it follows, by ``delay_s`` seconds."""

    target: Target
    number: signal.Signals
    after_step: int
    delay_s: float

    def __str__(self) -> str:
        return (
            f"{self.number.name} to the {self.target} {self.delay_s:.2f} s after step "
            f"{self.after_step}"
        )


def draw_schedule(seed: int, count: int, steps: int) -> list[Fault]:
    """In the order of time; the last steps are left alone, so that each fault finds a run."""
    draw = Random(seed)
    after = sorted(draw.randrange(0, max(1, steps - 1)) for _ in range(count))
    return [
        Fault(
            target=draw.choice(get_args(Target)),
            number=draw.choice(SIGNALS),
            after_step=step,
            delay_s=draw.expovariate(1.0),
        )
        for step in after
    ]
