"""The engine that generates."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from colocate.config.types import NonNegativeInt, PositiveFloat, PositiveInt, Section, refuse_bool

SleepLevel = Annotated[Literal["auto", 0, "kv", 1, 2], BeforeValidator(refuse_bool)]

DEFAULT_MISMATCH_WARN = {"float32": 1e-3, "bfloat16": 0.05}
"""Mean absolute difference of log-probabilities, in nats: far above what float32 engines that are
right differ by (some 1e-6), and little beside a clip range of 0.2."""


class InferenceConfig(Section):
    num_engines: PositiveInt = Field(1, description="Engines side by side.")
    tensor_parallel_size: PositiveInt = Field(1, description="Devices that share one engine.")
    kv_cache_memory_bytes: PositiveInt = Field(description="KV cache of one engine worker.")
    max_model_len: PositiveInt = Field(description="Longest context, prompt and all turns.")
    max_num_seqs: PositiveInt = Field(256, description="Sequences decoded together.")
    enforce_eager: bool = Field(
        False, description="Capture and compile nothing: starts sooner, decodes more slowly."
    )
    sleep: SleepLevel = Field(
        "auto",
        description="What a swap evicts of the engine: 0 nothing (pause only); kv its KV cache; "
        "1 also its weights, kept in RAM; 2 also its weights, kept nowhere, since a publication "
        "rewrites them. `auto`: the cheapest, by measured cost, with which engine and trainer fit "
        "`memory.budget_bytes`, or the device.",
    )
    verify_every: NonNegativeInt = Field(
        10,
        description="Swaps from one comparison of the engine's log-probabilities of fixed prompts "
        "with the trainer's to the next; 0: never.",
    )
    verify_tolerance: PositiveFloat | None = Field(
        None,
        description="The difference between them that passes: in float32 the largest (null: "
        "0.001), in bfloat16 the mean (null: 0.25).",
    )
    fp32_head: bool = Field(
        False,
        description="Engine and trainer compute the output head of a bfloat16 model in float32: "
        "neither then rounds its logits.",
    )
    batch_invariant: bool = Field(
        False,
        description="The engine's kernels give a sequence the same log-probabilities whatever "
        "else is in its batch; slower. GPUs of compute capability 9.0 or more.",
    )
    mismatch_warn: PositiveFloat | None = Field(
        None,
        description="A training step whose mean absolute difference between the engine's and the "
        "trainer's log-probabilities, on the same weights, is larger brings a warning, once a run; "
        "null: 0.001 in float32, 0.05 in bfloat16.",
    )
    engine_args: dict[str, Any] = Field(
        default_factory=dict,
        description="Further keyword arguments of vLLM's AsyncEngineArgs. What colocate sets "
        "itself is refused.",
    )

    def warns_of_mismatch_above(self, *dtypes: str) -> float:
        """``mismatch_warn``, or the default of the coarsest type that a forward pass is in."""
        if self.mismatch_warn is not None:
            return self.mismatch_warn
        return max(DEFAULT_MISMATCH_WARN[dtype] for dtype in dtypes)
