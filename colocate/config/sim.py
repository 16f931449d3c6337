"""The world of `colocate simulate`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from colocate.config.types import (
    Fraction,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    Section,
)


class DistributionConfig(Section):
    """What a quantity of the simulator is drawn from, each time anew."""

    kind: Literal["constant", "uniform", "exponential", "lognormal", "pareto", "empirical"] = Field(
        "constant", description="Its family; `empirical` draws one of `values`."
    )
    scale: NonNegativeFloat = Field(
        0.0,
        description="`constant`: the value; `uniform`: the largest, from 0; `exponential`: the "
        "mean; `lognormal`: the median; `pareto`: the smallest.",
    )
    shape: PositiveFloat = Field(
        1.0,
        description="`lognormal`: deviation of the logarithm; `pareto`: exponent of the tail (the "
        "mean is infinite up to 1, the variance up to 2).",
    )
    cap: PositiveFloat | None = Field(None, description="Nothing larger is drawn; null: no limit.")
    values: tuple[NonNegativeFloat, ...] = Field(
        (), strict=False, description="`empirical`: what was measured."
    )


class SimEngineConfig(Section):
    """One engine that batches continuously: a pass gives a token to every running sequence."""

    pass_s: PositiveFloat = Field(0.02, description="A decoding pass, whatever it decodes.")
    sequence_s: NonNegativeFloat = Field(1e-4, description="Added for each sequence in the pass.")
    context_token_s: NonNegativeFloat = Field(
        0.0, description="Added for each token of context that the running sequences hold."
    )
    prefill_token_s: NonNegativeFloat = Field(
        2e-5, description="Added for each token of a prompt that the prefix cache lacks."
    )
    request_s: NonNegativeFloat = Field(
        0.0, description="From a request's last token to the driver's knowing it."
    )
    kv_token_bytes: NonNegativeInt = Field(
        0, description="KV cache of one token on one device; 0: the cache is never full."
    )


class SimTrainerConfig(Section):
    step_s: NonNegativeFloat = Field(1.0, description="A training step, whatever it trains.")
    token_s: NonNegativeFloat = Field(
        1e-3, description="Added for each trained token, of one rank alone; ranks share the tokens."
    )


class SimSwapConfig(Section):
    """What the phases take: seconds each, and bytes of one device by bandwidth."""

    start_s: NonNegativeFloat = Field(30.0, description="Starting trainer and engine.")
    park_s: NonNegativeFloat = Field(0.1, description="Aborting what is in flight.")
    sleep_s: NonNegativeFloat = Field(0.5, description="Evicting the engine.")
    load_s: NonNegativeFloat = Field(0.5, description="Loading the trainer.")
    offload_s: NonNegativeFloat = Field(0.5, description="Offloading the trainer.")
    wake_weights_s: NonNegativeFloat = Field(0.3, description="Waking the engine's weights.")
    publish_s: NonNegativeFloat = Field(0.5, description="Publishing weights.")
    wake_kv_s: NonNegativeFloat = Field(0.3, description="Waking the engine's KV cache.")
    verify_s: NonNegativeFloat = Field(
        0.5, description="Comparing the engine with the trainer, where `inference.verify_every` is."
    )
    checkpoint_s: NonNegativeFloat = Field(5.0, description="Writing a checkpoint.")
    close_s: NonNegativeFloat = Field(1.0, description="Closing trainer and engine.")
    host_bandwidth: PositiveFloat = Field(
        25e9, description="Bytes per second between a device and host memory."
    )
    publish_bandwidth: PositiveFloat = Field(
        50e9, description="Bytes per second of published weights."
    )


class SimMemoryConfig(Section):
    """Bytes on one device. Phases take longer by what they move of it."""

    device_bytes: PositiveInt | None = Field(
        None, description="Capacity; null: nothing measures memory, and each swap evicts all."
    )
    weights_bytes: NonNegativeInt = Field(0, description="The engine's weights.")
    kv_bytes: NonNegativeInt = Field(
        0, description="The engine's KV cache, as `inference.kv_cache_memory_bytes`."
    )
    engine_residual_bytes: NonNegativeInt = Field(0, description="What a sleeping engine keeps.")
    parameters_bytes: NonNegativeInt = Field(0, description="The trainer's parameters.")
    gradients_bytes: NonNegativeInt = Field(0, description="The trainer's gradients.")
    optimizer_bytes: NonNegativeInt = Field(0, description="The optimizer's state.")
    activations_bytes: NonNegativeInt = Field(0, description="Of a training step.")
    trainer_residual_bytes: NonNegativeInt = Field(0, description="What an idle trainer keeps.")


class SimEnvironmentConfig(Section):
    """Latencies in seconds; `environment.step_timeout_s` ends what takes longer."""

    reset: DistributionConfig = Field(
        default_factory=DistributionConfig, description="Beginning an episode."
    )
    step: DistributionConfig = Field(
        default_factory=lambda: DistributionConfig(kind="lognormal", scale=1.0),
        description="Answering an action.",
    )
    failure_probability: Fraction = Field(0.0, description="Of a step that breaks.")
    invalid_probability: Fraction = Field(0.0, description="Of a step that calls it all invalid.")


class SimEpisodeConfig(Section):
    """What trajectories look like. Lengths in tokens, rounded, at least 1 where sampled."""

    prompt_tokens: DistributionConfig = Field(
        default_factory=lambda: DistributionConfig(scale=128), description="Before the first turn."
    )
    turn_tokens: DistributionConfig = Field(
        default_factory=lambda: DistributionConfig(kind="lognormal", scale=128),
        description="Sampled in a turn; `rollout.max_new_tokens` cuts it.",
    )
    observation_tokens: DistributionConfig = Field(
        default_factory=lambda: DistributionConfig(scale=32), description="Between turns."
    )
    turns: DistributionConfig = Field(
        default_factory=lambda: DistributionConfig(kind="uniform", scale=4),
        description="Of an episode; `rollout.max_turns` cuts it.",
    )
    reward: DistributionConfig = Field(
        default_factory=lambda: DistributionConfig(kind="uniform", scale=1),
        description="Of an episode. Nothing is learnt in a simulation.",
    )


class SimConfig(Section):
    """The world of `colocate simulate`. A training run does not read it."""

    from_run: str | None = Field(
        None,
        description="Folder of a real run: the run's own overrides come first, and everything "
        "below `trace_fraction` is fitted to its journal.",
    )
    trace_fraction: Fraction = Field(
        1.0,
        description="Share of the prompts' groups whose events journal and trace keep. Only a "
        "journal that keeps all can be replayed.",
    )
    audit: bool = Field(True, description="Check the invariants at every event; slower.")
    engine: SimEngineConfig = Field(default_factory=SimEngineConfig)
    trainer: SimTrainerConfig = Field(default_factory=SimTrainerConfig)
    swap: SimSwapConfig = Field(default_factory=SimSwapConfig)
    memory: SimMemoryConfig = Field(default_factory=SimMemoryConfig)
    environment: SimEnvironmentConfig = Field(default_factory=SimEnvironmentConfig)
    episode: SimEpisodeConfig = Field(default_factory=SimEpisodeConfig)
