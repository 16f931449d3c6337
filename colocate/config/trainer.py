"""The side that takes optimizer steps."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from colocate.config.types import (
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
    refuse_bool,
)

Beta = Annotated[float, Field(ge=0, lt=1)]
ZeroStage = Annotated[Literal[0, 1, 2, 3], BeforeValidator(refuse_bool)]
Packing = Literal["auto", True, False]

DEFAULT_BUCKET_BYTES = {"cpu": 64 * 2**20, "cuda": 256 * 2**20}
"""Each bucket is a round trip between processes. On CPU two of them stay in shared memory between
publications."""


class TrainerConfig(Section):
    zero_stage: ZeroStage = Field(
        1,
        description="What DeepSpeed divides among the ranks: 0 nothing, 1 optimizer state, "
        "2 gradients too, 3 parameters too.",
    )
    num_ranks: PositiveInt = Field(1, description="Processes that train, one a device.")
    micro_batch_tokens: PositiveInt = Field(
        4096,
        description="Tokens in one forward and backward pass of one rank, padding included; more "
        "only where a single trajectory has more.",
    )
    packing: Packing = Field(
        "auto",
        description="Trajectories of a micro-batch lie end to end, without padding, and attention "
        "is cut between them. `auto`: with the architectures that are known to score them so as "
        "alone, else they are padded; `true`: others are refused; `false`: always padded.",
    )
    gradient_checkpointing: bool = Field(
        False,
        description="The backward pass computes each layer's activations again, of which the "
        "forward pass keeps only the input: much less memory, for about a third more work.",
    )
    num_minibatches: PositiveInt = Field(1, description="Optimizer steps per training step.")
    learning_rate: PositiveFloat = Field(1e-6, description="After warm-up.")
    warmup_steps: NonNegativeInt = Field(0, description="Training steps of linear warm-up.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="How the learning rate goes on after warm-up, over `steps`."
    )
    betas: tuple[Beta, Beta] = Field(
        (0.9, 0.999), strict=False, description="AdamW's decay of the two moments."
    )
    eps: PositiveFloat = Field(1e-8, description="AdamW's term in the denominator.")
    weight_decay: NonNegativeFloat = Field(0.0, description="AdamW's decoupled decay.")
    max_grad_norm: PositiveFloat = Field(1.0, description="Larger gradients are scaled to it.")
    dtype: Literal["float32", "bfloat16"] | None = Field(
        None, description="Of the forward pass; null: `model.dtype`, which weights are cast to."
    )
    publish_bucket_bytes: PositiveInt | None = Field(
        None,
        description="Weights are published in buckets of about this size; null: 256 MiB on GPUs, "
        "64 MiB on CPU, where two exist, and are kept.",
    )
    deepspeed: dict[str, Any] = Field(
        default_factory=dict,
        description="Merged deeply into DeepSpeed's configuration. What colocate sets itself is "
        "refused.",
    )

    def bucket_bytes(self, device: str) -> int:
        """``publish_bucket_bytes``, or what is best on this kind of device."""
        return self.publish_bucket_bytes or DEFAULT_BUCKET_BYTES[device]
