"""The model that is trained, and what of it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from colocate.config.types import PositiveFloat, PositiveInt, Section


def _all_linear_or_names(value: object) -> object:
    """One complaint, where a union would make one for each of its types."""
    if value == "all-linear":
        return value
    if isinstance(value, list | tuple) and value and all(isinstance(each, str) for each in value):
        return tuple(value)
    raise ValueError("must be `all-linear`, or a list of one or more names of layers")


TargetModules = Annotated[
    Literal["all-linear"] | tuple[str, ...], BeforeValidator(_all_linear_or_names)
]


class EmbeddedModelConfig(Section):
    """A Qwen3-architecture transformer made from nothing, for tests and the quickstart."""

    hidden_size: PositiveInt = Field(128, description="Width of the residual stream.")
    num_layers: PositiveInt = Field(2, le=10_000, description="Transformer blocks.")
    intermediate_size: PositiveInt = Field(256, description="Width of the MLP.")
    num_attention_heads: PositiveInt = Field(
        4, description="Query heads; a multiple of the key and value heads."
    )
    num_key_value_heads: PositiveInt = Field(2, description="Key and value heads.")
    head_dim: PositiveInt = Field(32, description="Width of a head.")
    tie_word_embeddings: bool = Field(True, description="The output head is the embedding.")
    initializer_range: PositiveFloat = Field(
        0.06, description="Standard deviation of the initial weights."
    )


class LoraConfig(Section):
    """Low-rank adapters (Hu et al. 2021, LoRA), trained in place of the weights.

    A targeted weight W (out, in) becomes W + scale x B A, with A (rank, in) drawn at random and B
    (out, rank) of zeros, so that the model begins as it is.
    """

    rank: PositiveInt = Field(16, description="r, of each adapter.")
    alpha: PositiveFloat = Field(
        32.0, description="B A is scaled by alpha / rank, or as `rank_stabilized` has it."
    )
    rank_stabilized: bool = Field(
        False, description="Scale by alpha / sqrt(rank) instead (rsLoRA): for large ranks."
    )
    target_modules: TargetModules = Field(
        "all-linear",
        description="Linear layers with an adapter, by name or by the end of it, as [q_proj, "
        "v_proj]; `all-linear`: all but the output head.",
    )

    @property
    def scale(self) -> float:
        """Of B A. rsLoRA's: Kalajdzievski 2023, A rank stabilization scaling factor."""
        return self.alpha / (self.rank**0.5 if self.rank_stabilized else self.rank)


class ModelConfig(Section):
    path: str | None = Field(None, description="Hugging Face model folder or hub name.")
    embedded: EmbeddedModelConfig | None = Field(
        None, description="Make a small model instead of loading one. Excludes `path`."
    )
    dtype: Literal["float32", "bfloat16"] = Field(
        "bfloat16", description="Of the engine's weights, and of the trainer's forward pass."
    )
    chat_template: str = Field(
        "auto",
        min_length=1,
        description="How conversations become tokens: `auto` by the tokenizer's chat template, "
        "where it has one; `none` as plain text; a file (FILE.jinja) by that template.",
    )
    chat_template_options: dict[str, Any] = Field(
        default_factory=dict,
        description="Variables that the template reads, as `{enable_thinking: false}`.",
    )
    lora: LoraConfig | None = Field(
        None,
        description="Train low-rank adapters and leave the model's weights as they are, as with "
        "`model.lora={rank: 16}`; null: train all weights. See lora.md.",
    )
