"""What a simulation is given: the limits of a run's configuration, and the simulated world's."""

from __future__ import annotations

from dataclasses import dataclass, field

from colocate.config import RunConfig, SimConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """Lengths in tokens, times in seconds; names as in the configuration.

    Attributes:
        kv_tokens: Tokens that the KV cache of one engine holds; None: any number.
        sim: Durations, sizes and distributions.
        outside_s: What a run takes before its clock starts and after it stops.
    """

    sim: SimConfig = field(default_factory=SimConfig)
    num_engines: int = 1
    num_ranks: int = 1
    max_num_seqs: int = 256
    kv_tokens: int | None = None
    max_new_tokens: int = 1024
    max_turns: int = 8
    max_model_len: int = 8192
    step_timeout_s: float = 300.0
    seed: int = 0
    outside_s: float = 0.0


def make_world(config: RunConfig) -> World:
    """The world that a run's configuration describes.

    A KV cache is divided over the devices of its engine as the weights are, so that each device
    holds a part of every token.
    """
    per_token = config.sim.engine.kv_token_bytes
    return World(
        sim=config.sim,
        num_engines=config.inference.num_engines,
        num_ranks=config.trainer.num_ranks,
        max_num_seqs=config.inference.max_num_seqs,
        kv_tokens=config.inference.kv_cache_memory_bytes // per_token if per_token else None,
        max_new_tokens=config.rollout.max_new_tokens,
        max_turns=config.rollout.max_turns,
        max_model_len=config.inference.max_model_len,
        step_timeout_s=config.environment.step_timeout_s,
        seed=config.seed,
    )
