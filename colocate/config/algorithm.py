"""What is learnt from a batch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from colocate.config.types import (
    NonNegativeFloat,
    OpenFraction,
    PositiveFloat,
    PositiveInt,
    Section,
)


class CorrectionConfig(Section):
    """What makes data of an older policy, or of another engine, count as the trainer's own."""

    objective: Literal["decoupled", "plain"] = Field(
        "decoupled",
        description="`decoupled`: the ratio is of the current policy over that which the step "
        "began with (proximal), weights are of that over the policy that sampled (behaviour). "
        "`plain`: both are of the current over the behaviour policy.",
    )
    level: Literal["token", "sequence", "geometric"] = Field(
        "token",
        description="What weights are ratios of: tokens, whole sequences (the product over their "
        "tokens), or sequences by the geometric mean of theirs.",
    )
    mode: Literal["truncate", "mask", "none"] = Field(
        "truncate",
        description="`truncate` cuts weights at the cap; `mask` rejects what has one above it, or "
        "below the floor; `none` uses no weights.",
    )
    cap: Annotated[float, Field(gt=1)] = Field(2.0, description="C: the largest weight.")
    floor: OpenFraction | None = Field(
        None, description="`mask`: the smallest weight; null: no limit."
    )
    band_low: OpenFraction | None = Field(
        None,
        description="A sequence whose geometric-mean ratio is below is rejected; null: no limit.",
    )
    band_high: Annotated[float, Field(gt=1)] | None = Field(
        None,
        description="A sequence whose geometric-mean ratio is above is rejected; null: no limit.",
    )
    veto: OpenFraction | None = Field(
        None,
        description="One token with a ratio below rejects its whole sequence (1e-4 is common); "
        "null: none does.",
    )


class KlConfig(Section):
    """How far the policy may leave the model that the run began with (the reference)."""

    coef: NonNegativeFloat = Field(
        0.0,
        description="Weight of the penalty; 0: off, and no reference model is held. With "
        "`model.lora` none is ever held: the model without its adapters is the reference.",
    )
    estimator: Literal["k1", "k2", "k3"] = Field(
        "k3",
        description="Of KL(policy, reference), from one token, with d = log(reference / policy): "
        "-d, d^2 / 2, or exp(d) - 1 - d.",
    )
    placement: Literal["loss", "reward"] = Field(
        "loss",
        description="`loss` adds it to each token's loss; `reward` takes its sum over a trajectory "
        "off the reward, before advantages. (k1 in the loss has no gradient on average.)",
    )

    @property
    def off_the_reward(self) -> bool:
        return self.coef > 0 and self.placement == "reward"


class OverlongConfig(Section):
    """What becomes of trajectories that run out of tokens or turns (truncated), or nearly do."""

    mode: Literal["keep", "mask", "shape"] = Field(
        "keep",
        description="`keep` trains truncated trajectories as they are; `mask` keeps them out of "
        "gradient and statistics; `shape` trains them, and takes a penalty off the reward of every "
        "trajectory that is nearly too long (DAPO's soft overlong punishment).",
    )
    max_length: PositiveInt | None = Field(
        None, description="`shape`: L_max, sampled tokens at which the penalty is whole."
    )
    cache_length: PositiveInt | None = Field(
        None,
        description="`shape`: L_cache, tokens before it over which the penalty grows; null: a "
        "fifth of `max_length`, as in the paper.",
    )
    penalty: PositiveFloat = Field(1.0, description="`shape`: the whole penalty.")

    @property
    def cache_tokens(self) -> int:
        """``cache_length``, or the paper's share: 4,096 of 20,480."""
        assert self.max_length is not None
        return self.cache_length or max(1, self.max_length // 5)


class AlgorithmConfig(Section):
    group_size: PositiveInt = Field(description="Trajectories of one prompt.")
    groups_per_step: PositiveInt = Field(description="Groups in one training batch.")
    advantage: Literal["group_std", "group_mean", "batch_std", "leave_one_out", "batch_norm"] = (
        Field(
            "group_std",
            description="Reward minus the group's mean, divided by the group's deviation "
            "(`group_std`), the batch's (`batch_std`) or nothing (`group_mean`); minus the mean of "
            "the group's others (`leave_one_out`); minus the batch's mean, divided by its "
            "deviation (`batch_norm`).",
        )
    )
    ratio: Literal["token", "sequence"] = Field(
        "token",
        description="Of probabilities of a token, or the geometric mean of those of a sequence.",
    )
    surrogate: Literal["clip", "cispo", "reinforce"] = Field(
        "clip",
        description="PPO's clipped ratio; the log-probability weighted by the clipped ratio, which "
        "bears no gradient (`cispo`); the log-probability alone (`reinforce`).",
    )
    clip_low: NonNegativeFloat = Field(0.2, description="The ratio is clipped at 1 - clip_low.")
    clip_high: NonNegativeFloat = Field(0.2, description="The ratio is clipped at 1 + clip_high.")
    dual_clip: Annotated[float, Field(gt=1)] | None = Field(
        None,
        description="`clip`: a token of negative advantage counts no more than a ratio of this "
        "(3 is common); null: no limit.",
    )
    aggregation: Literal["token_mean", "sequence_mean", "fixed_length"] = Field(
        "sequence_mean",
        description="Mean over a mini-batch's tokens; mean over its sequences of their tokens' "
        "mean; sum over tokens by its number of sequences times `length_budget`.",
    )
    length_budget: PositiveInt | None = Field(
        None, description="`fixed_length`: tokens that every sequence counts as."
    )
    entropy_coef: NonNegativeFloat = Field(0.0, description="Weight of the entropy bonus.")
    overlong: OverlongConfig = Field(default_factory=OverlongConfig)
    dynamic_sampling: bool = Field(
        False,
        description="Groups whose rewards are all equal are filtered as soon as they are complete, "
        "and others sampled in their place.",
    )
    dynamic_sampling_max_groups: PositiveInt | None = Field(
        None,
        description="After so many of them for one training step, further ones are trained as "
        "they are; null: 10 x `groups_per_step`.",
    )
    kl: KlConfig = Field(default_factory=KlConfig)
    correction: CorrectionConfig = Field(default_factory=CorrectionConfig)

    @property
    def trajectories_per_step(self) -> int:
        return self.group_size * self.groups_per_step
