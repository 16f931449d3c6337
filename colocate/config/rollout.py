"""How trajectories are sampled."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from colocate.config.types import Fraction, NonNegativeFloat, NonNegativeInt, PositiveInt, Section


class RolloutConfig(Section):
    max_new_tokens: PositiveInt = Field(description="Per turn.")
    max_turns: PositiveInt = Field(1, description="Turns of the agent in one trajectory, at most.")
    temperature: NonNegativeFloat = Field(1.0, description="Of sampling; 0 is greedy.")
    top_p: Annotated[float, Field(gt=0, le=1)] = Field(
        1.0, description="Sample from the likeliest tokens of this total probability; 1: from all."
    )
    top_k: PositiveInt | None = Field(
        None, description="Sample from so many likeliest tokens; null: from all."
    )
    min_p: Fraction = Field(
        0.0, description="Sample tokens of at least this share of the likeliest's probability."
    )
    redundant_per_group: NonNegativeInt = Field(
        0,
        description="Trajectories of a group beyond `algorithm.group_size`: the first so many to "
        "finish make the group, the others are cancelled.",
    )
    redundant_groups: NonNegativeInt = Field(
        0, description="Groups that are admitted beyond what the bound on staleness admits."
    )
    spare_groups: Literal["cancel", "carry"] = Field(
        "cancel",
        description="What a swap does with as many unfinished groups: `cancel` them, or `carry` "
        "them to the next one, as long as they are within the bound.",
    )
    stop: tuple[str, ...] = Field(
        (), strict=False, description="A turn ends after one of these; it is kept."
    )
