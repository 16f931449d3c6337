"""Families of workloads on which swap policies are compared.

They span what decides when a swap pays: how long environments take and how heavy their tail is,
how long generations are, what a swap costs, how large a batch is, how soon the engine is saturated,
and how old a trained token may be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from colocate.config import (
    DistributionConfig,
    SimConfig,
    SimEngineConfig,
    SimEnvironmentConfig,
    SimEpisodeConfig,
    SimSwapConfig,
    SimTrainerConfig,
)
from colocate.core.settings import Settings
from colocate.sim.world import World

NEVER_S = 1e9

BASE = Settings(
    steps=160,
    group_size=4,
    groups_per_step=4,
    max_staleness=7,
    phase_timeout_s=NEVER_S,
    training_timeout_s=NEVER_S,
    idle_timeout_s=NEVER_S,
    start_timeout_s=NEVER_S,
)

SHARES: Mapping[str, float] = {
    "park_s": 0.02,
    "sleep_s": 0.13,
    "load_s": 0.2,
    "offload_s": 0.25,
    "wake_weights_s": 0.1,
    "publish_s": 0.2,
    "wake_kv_s": 0.1,
}
"""Of a swap's seconds without training."""


def constant(value: float) -> DistributionConfig:
    return DistributionConfig(scale=value)


def exponential(mean: float, largest: float | None = None) -> DistributionConfig:
    return DistributionConfig(kind="exponential", scale=mean, cap=largest)


def lognormal(median: float, sigma: float, largest: float) -> DistributionConfig:
    return DistributionConfig(kind="lognormal", scale=median, shape=sigma, cap=largest)


def pareto(smallest: float, exponent: float, largest: float) -> DistributionConfig:
    return DistributionConfig(kind="pareto", scale=smallest, shape=exponent, cap=largest)


@dataclass(frozen=True, kw_only=True)
class Family:
    """Seconds and tokens. ``swap_s``: of all phases of a swap together, without training."""

    latency: DistributionConfig
    swap_s: float
    turn_tokens: DistributionConfig = field(default_factory=lambda: lognormal(60, 0.6, 600))
    turns: DistributionConfig = field(default_factory=lambda: exponential(3.0, 12))
    prompt_tokens: int = 100
    engine: SimEngineConfig = field(default_factory=lambda: SimEngineConfig(sequence_s=2e-4))
    settings: Settings = BASE

    def world(self, seed: int) -> World:
        seconds = {name: self.swap_s * share for name, share in SHARES.items()}
        return World(
            sim=SimConfig(
                engine=self.engine,
                trainer=SimTrainerConfig(step_s=1.0, token_s=2e-4),
                # Weights have no bytes here: what publishing takes is in its share.
                swap=SimSwapConfig(
                    start_s=0.1 * self.swap_s,
                    close_s=0.1 * self.swap_s,
                    checkpoint_s=0.0,
                    **seconds,
                ),
                environment=SimEnvironmentConfig(reset=constant(0.05), step=self.latency),
                episode=SimEpisodeConfig(
                    prompt_tokens=constant(self.prompt_tokens),
                    turn_tokens=self.turn_tokens,
                    observation_tokens=constant(40),
                    turns=self.turns,
                ),
            ),
            max_new_tokens=100_000,
            max_turns=100,
            max_model_len=1_000_000,
            step_timeout_s=NEVER_S,
            seed=seed,
        )

    def with_policy(
        self, policy: Literal["interval", "drain", "adaptive"], interval: int = 1
    ) -> Settings:
        return replace(self.settings, policy=policy, swap_interval=interval)


FAMILIES: Mapping[str, Family] = {
    "no latency, cheap swap": Family(latency=constant(0.01), swap_s=1.0),
    "no latency, dear swap": Family(latency=constant(0.01), swap_s=30.0),
    "long generations, heavy-tailed lengths": Family(
        latency=constant(0.01),
        swap_s=15.0,
        turn_tokens=lognormal(400, 1.0, 8000),
        turns=constant(1),
    ),
    "short generations, exponential latency": Family(
        latency=exponential(2.0), swap_s=4.0, turn_tokens=lognormal(20, 0.4, 100)
    ),
    "Pareto 2.5 latency": Family(latency=pareto(1.0, 2.5, 600), swap_s=6.0),
    "Pareto 1.5 latency, cheap swap": Family(latency=pareto(1.0, 1.5, 600), swap_s=1.0),
    "Pareto 1.5 latency, dear swap": Family(latency=pareto(1.0, 1.5, 600), swap_s=30.0),
    "large batches": Family(
        latency=exponential(1.0),
        swap_s=10.0,
        settings=replace(BASE, groups_per_step=16, max_staleness=3, steps=100),
    ),
    "small batches": Family(
        latency=pareto(0.5, 1.8, 300),
        swap_s=5.0,
        settings=replace(BASE, groups_per_step=1, steps=250),
    ),
    "engine that a few requests saturate": Family(
        latency=exponential(1.0),
        swap_s=8.0,
        engine=SimEngineConfig(pass_s=0.002, sequence_s=1e-3),
    ),
    "costly re-prefill": Family(
        latency=exponential(1.0),
        swap_s=4.0,
        prompt_tokens=600,
        engine=SimEngineConfig(sequence_s=2e-4, prefill_token_s=4e-4),
    ),
    "tight bound": Family(
        latency=pareto(1.0, 1.8, 300), swap_s=8.0, settings=replace(BASE, max_staleness=1)
    ),
}
