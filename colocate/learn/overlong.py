"""The soft overlong punishment: what a trajectory loses of its reward for its length."""

from __future__ import annotations

from collections.abc import Sequence

from colocate.config import OverlongConfig
from colocate.ports import TrainingSample


def overlong_penalty(length: int, overlong: OverlongConfig) -> float:
    """What is taken off the reward of a trajectory of ``length`` *sampled* tokens.

    Minus equation 13 of DAPO (arXiv:2503.14476), times ``penalty`` (1 in the paper)::

        0                                    length <= L_max - L_cache
        (length - (L_max - L_cache)) / L_cache     in between
        1                                    L_max < length

    Prompt and observations do not count: no answer is too long for what a tool had to say. The
    length alone decides, not whether the trajectory was truncated.
    """
    assert overlong.max_length is not None
    cache_length = overlong.cache_tokens
    over = length - (overlong.max_length - cache_length)
    return overlong.penalty * min(max(over / cache_length, 0.0), 1.0)


def overlong_penalties(
    samples: Sequence[TrainingSample], overlong: OverlongConfig
) -> list[float] | None:
    """One penalty for each sample, or None where rewards are not shaped."""
    if overlong.mode != "shape":
        return None
    return [overlong_penalty(sum(sample.loss_mask), overlong) for sample in samples]
