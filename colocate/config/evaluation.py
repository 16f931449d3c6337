"""How good the model is on prompts that it is not trained on, measured while the run goes on."""

from __future__ import annotations

from pydantic import Field

from colocate.config.types import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
)


class EvalConfig(Section):
    every_steps: NonNegativeInt = Field(
        0,
        description="Training steps from one evaluation to the next, and one at the end; 0: none.",
    )
    before_first_step: bool = Field(
        True, description="Evaluate what the run begins with, too: the baseline."
    )
    num_prompts: PositiveInt | None = Field(
        64,
        description="Of the evaluation split, at most, evenly spread over it and the same each "
        "time; null: all.",
    )
    samples_per_prompt: PositiveInt = Field(1, description="Episodes on each prompt.")
    k: PositiveInt | None = Field(
        None, description="Of pass@k, at most `samples_per_prompt`; null: as many as these."
    )
    pass_reward: float = Field(1.0, description="An episode passes with this reward or a greater.")
    temperature: NonNegativeFloat = Field(0.0, description="Of sampling; 0 is greedy.")
    max_new_tokens: PositiveInt | None = Field(
        None, description="Per turn; null: `rollout.max_new_tokens`."
    )
    max_turns: PositiveInt | None = Field(
        None, description="Of one episode, at most; null: `rollout.max_turns`."
    )
    timeout_s: PositiveFloat = Field(
        600.0,
        description="How long an evaluation may hold the swap. What is unfinished then is cut off "
        "and counted.",
    )
