"""What a display is fed with: one small, plain picture of the run at an instant."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from colocate.core.phases import Phase
from colocate.core.types import MemorySample


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSnapshot:
    """A run at an instant. Every field but the first four may be left at its default.

    Attributes:
        phase: The phase that the run is in.
        elapsed_s: Seconds since the run began, on the run's clock; never falls.
        step: Training steps done.
        num_steps: Training steps to do.
        num_swaps: Swaps done.
        reward: Mean reward of the last training step; ``None`` before the first.
        best_reward: The best of those means.
        recent_rewards: Means of the last training steps, the oldest first.
        trajectories: Number by state, of those not ended: ``queued``, ``generating``,
            ``environment``, ``finished``, ``leased``.
        endings: Number by ending, since the run began: ``trained``, ``expired``, ...
        staleness: Tokens of the last training step by lag, in versions.
        max_staleness: The bound S.
        tokens_generated: Since the run began; so are the next two.
        tokens_trained: Those that a training step trained on.
        tokens_carried: Those of partial trajectories that crossed a swap.
        swap_cost_s: What the last swap took without its training; ``None`` before the first.
        mean_swap_cost_s: The mean of that over all swaps.
        swap_share: The share of ``elapsed_s`` that swaps without their training have taken.
        mismatch: Mean absolute difference between the engine's and the trainer's log-probabilities
            in the last training step that compared any; ``None`` before.
        evaluation: The metrics of the last evaluation, and its ``step``; empty before.
        is_evaluating: One is going on.
        warnings: Since the run began, the oldest first.
        memory: The last reading.
        eta_s: Seconds that the run will take from now; ``None`` where nothing is known yet.
    """

    phase: Phase
    elapsed_s: float
    step: int
    num_steps: int
    num_swaps: int = 0
    reward: float | None = None
    best_reward: float | None = None
    recent_rewards: tuple[float, ...] = ()
    trajectories: Mapping[str, int] = field(default_factory=dict)
    endings: Mapping[str, int] = field(default_factory=dict)
    staleness: Mapping[int, int] = field(default_factory=dict)
    max_staleness: int = 0
    tokens_generated: int = 0
    tokens_trained: int = 0
    tokens_carried: int = 0
    swap_cost_s: float | None = None
    mean_swap_cost_s: float | None = None
    swap_share: float = 0.0
    mismatch: float | None = None
    evaluation: Mapping[str, float] = field(default_factory=dict)
    is_evaluating: bool = False
    warnings: tuple[str, ...] = ()
    memory: MemorySample | None = None
    eta_s: float | None = None
