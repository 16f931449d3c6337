"""How long what was sampled may be used."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from colocate.config.types import Fraction, NonNegativeFloat, NonNegativeInt, PositiveInt, Section


class BufferConfig(Section):
    max_staleness: NonNegativeInt = Field(1, description="S: no trained token has a larger lag.")
    max_inflight: PositiveInt | None = Field(
        None, description="Requests at the engine at most; null: max(1, S) x n."
    )
    on_stale: Literal["expire", "restart"] = Field(
        "expire", description="What becomes of trajectories that a swap would make too stale."
    )
    max_filtered_fraction: Fraction = Field(
        0.5,
        description="A larger share of trajectories that are filtered, failed, or called invalid "
        "by their environment ends the run, once it is no accident.",
    )
    replay_groups: NonNegativeInt = Field(
        0,
        description="Trained groups that are kept, to replace groups whose rewards are all equal "
        "(first in, first out); 0: no replay.",
    )
    replay_min_std: NonNegativeFloat = Field(
        0.1, description="A group is kept only if its rewards deviate by more (population's)."
    )
    replay_min_mean: float = Field(
        0.5, description="A group is kept only if its mean reward is above."
    )
    replay_max_staleness: PositiveInt = Field(
        4, description="No replayed token has a larger lag; older groups are forgotten."
    )
    replay_max_uses: PositiveInt = Field(1, description="How often one group is replayed at most.")
