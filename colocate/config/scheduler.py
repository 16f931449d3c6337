"""When engine and trainer change places."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from colocate.config.types import Fraction, NonNegativeFloat, PositiveFloat, PositiveInt, Section


class SchedulerConfig(Section):
    policy: Literal["interval", "timed", "drain", "adaptive"] = Field(
        "interval",
        description="A swap is due when its batches are ready (`interval`), after a time "
        "(`timed`), when nothing is unfinished (`drain`), or when staying in rollout brings less "
        "than the average cycle, as learned (`adaptive`).",
    )
    swap_interval: PositiveInt = Field(1, description="k: training batches per swap.")
    period_s: PositiveFloat | None = Field(
        None, description="`timed`: seconds of rollout after which a swap is due."
    )
    expiry_grace_s: NonNegativeFloat = Field(
        0.0, description="How long a swap may be held for partials that it would expire."
    )
    warmup_swaps: PositiveInt = Field(
        1,
        description="`adaptive`: swaps to be seen before their measured cost is relied upon. Until "
        "then a swap is taken to cost as much time as the rollout has taken so far.",
    )
    hysteresis: Fraction = Field(
        0.05,
        description="`adaptive`: where staying and leaving differ by less than this share of the "
        "average, leaving must be indicated twice in a row.",
    )
