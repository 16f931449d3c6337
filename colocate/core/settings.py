"""What of the configuration the core reads. It is part of the journal's first event."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from colocate.core import staleness

DEFAULT_FLAT_BATCHES = 10
"""Batches' worth of groups without variance that dynamic sampling gives up before it gives in."""

BARREN_BATCHES = 50
"""Batches' worth of groups without a trainable token that a run samples before it stops."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Times in seconds, sizes in bytes; names as in the configuration.

    Raises:
        ValueError: where the numbers contradict each other. The configuration is checked before,
            with better words; this guards a core that is used without it.
    """

    steps: int
    group_size: int
    groups_per_step: int
    max_staleness: int
    policy: Literal["interval", "timed", "drain", "adaptive"] = "interval"
    swap_interval: int = 1
    period_s: float | None = None
    expiry_grace_s: float = 0.0
    warmup_swaps: int = 1
    hysteresis: float = 0.05
    max_inflight: int | None = None
    on_stale: Literal["expire", "restart"] = "expire"
    max_filtered_fraction: float = 0.5
    mask_truncated: bool = False
    redundant_per_group: int = 0
    redundant_groups: int = 0
    spare_groups: Literal["cancel", "carry"] = "cancel"
    replay_groups: int = 0
    replay_min_std: float = 0.1
    replay_min_mean: float = 0.5
    replay_max_staleness: int = 4
    replay_max_uses: int = 1
    dynamic_sampling: bool = False
    dynamic_sampling_max_groups: int | None = None
    sleep: Literal["auto", "0", "kv", "1", "2"] = "auto"
    margin_bytes: int = 0
    bucket_bytes: int = 0
    remedy_after_s: float = 5.0
    verify_every: int = 0
    mismatch_warn: float | None = None
    checkpoint_every_steps: int = 0
    checkpoint_every_s: float = 0.0
    keep_best: bool = False
    eval_every_steps: int = 0
    eval_before_first_step: bool = True
    eval_num_samples: int = 0
    eval_timeout_s: float = 600.0
    start_timeout_s: float = 600.0
    phase_timeout_s: float = 300.0
    training_timeout_s: float = 3600.0
    idle_timeout_s: float = 600.0
    grace_s: float = 20.0
    max_restarts: int = 0
    restart_window_s: float = 21600.0

    def __post_init__(self) -> None:
        if min(self.steps, self.group_size, self.groups_per_step, self.swap_interval) < 1:
            raise ValueError("steps, group_size, groups_per_step, swap_interval must be at least 1")
        if self.swap_interval > staleness.max_swap_interval(self.max_staleness):
            raise ValueError(
                f"swap_interval must be at most max_staleness + 1, but it is "
                f"{self.swap_interval} with a max_staleness of {self.max_staleness}"
            )
        if min(self.redundant_per_group, self.redundant_groups) < 0:
            raise ValueError("redundant_per_group and redundant_groups must not be negative")
        if self.policy == "timed" and self.period_s is None:
            raise ValueError("policy 'timed' needs period_s")
        if self.eval_every_steps and self.eval_num_samples < 1:
            raise ValueError("eval_every_steps needs eval_num_samples")
        if self.dynamic_sampling and self.replay_groups:
            raise ValueError("dynamic_sampling and replay_groups exclude each other")

    @property
    def trajectories_per_step(self) -> int:
        return self.group_size * self.groups_per_step

    @property
    def max_resident_groups(self) -> int:
        """A drain phase admits just what it will train; the others what the bound allows.

        Spares of redundancy are not among them.
        """
        if self.policy == "drain":
            return self.swap_interval * self.groups_per_step
        return staleness.max_resident(self.max_staleness, self.groups_per_step)

    @property
    def max_resident(self) -> int:
        """The trajectories of ``max_resident_groups``."""
        return self.max_resident_groups * self.group_size

    @property
    def max_flat_groups(self) -> int:
        """Groups without variance that dynamic sampling gives up for one step."""
        if self.dynamic_sampling_max_groups is not None:
            return self.dynamic_sampling_max_groups
        return DEFAULT_FLAT_BATCHES * self.groups_per_step

    @property
    def max_barren_groups(self) -> int:
        """Groups without a trainable token that a run may sample for one step."""
        return BARREN_BATCHES * self.groups_per_step

    @property
    def max_requests(self) -> int:
        if self.max_inflight is not None:
            return self.max_inflight
        members = self.group_size + self.redundant_per_group
        wanted = staleness.max_requests(self.max_staleness, members * self.groups_per_step)
        return wanted + members * self.redundant_groups
