"""The comparison of the engine's log-probabilities of fixed prompts with the trainer's.

Names and checksums show that bytes arrived; this shows that what the engine computes with them is
what the trainer computes: layouts, packed copies, tied heads, buffers and caches included.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from colocate.core.types import Version

MAX_PROMPT_TOKENS = 64

LARGEST_FLOAT32 = 1e-3
MEAN_BFLOAT16 = 0.25
"""Limits of differences of natural log-probabilities. See ``limit_of``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredPrompts:
    """Log-probabilities of each prompt's tokens but the first, of plain log-softmax.

    Attributes:
        version: Of the weights that scored them.
        dtypes: Those of the scoring forward pass and of the published weights.
        logprobs: For each prompt one less than it has tokens.
    """

    version: Version
    dtypes: tuple[str, ...]
    prompts: Sequence[Sequence[int]]
    logprobs: Sequence[Sequence[float]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Between two scorings: the mean over all tokens, and the largest one with its place."""

    mean: float
    largest: float
    prompt: int
    token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """What a difference must not exceed."""

    of: Literal["largest", "mean"]
    value: float

    def is_exceeded_by(self, difference: Difference) -> bool:
        actual = difference.largest if self.of == "largest" else difference.mean
        return actual > self.value


def probe_prompts(vocabulary_size: int, *, max_model_len: int, seed: int) -> list[list[int]]:
    """A handful of prompts of different lengths, over the whole vocabulary; the same every time.

    Each leaves room for the one token that an engine must generate.

    Raises:
        ValueError: a context too short for a token to be predicted from another.
    """
    longest = min(MAX_PROMPT_TOKENS, max_model_len - 1)
    if longest < 2:
        raise ValueError(
            f"inference.max_model_len must be at least 3 to verify weights, is {max_model_len}; "
            "set inference.verify_every=0"
        )
    draw = random.Random(seed)
    lengths = sorted({max(2, longest * share // 8) for share in (1, 3, 5, 8)})
    return [[draw.randrange(vocabulary_size) for _ in range(length)] for length in lengths]


def limit_of(dtypes: Sequence[str], tolerance: float | None = None) -> Limit:
    """What two right implementations keep to, with forward passes in these types.

    float32: the largest difference, 1e-3, many times what differently ordered sums leave.

    bfloat16: the mean difference, 0.25. A value is rounded by up to 2^-9 of itself. Two
    implementations round at different places in each of the 2 L additions to the residual stream
    of L layers, which drift apart by about ``sqrt(4 L) 2^-9`` of themselves (0.02 for 30 layers),
    and the logits with them: with logits that spread over several units, by 0.1. Measured on a
    model of 135M parameters, trainer against engine: 0.09 in the mean over 24 prompts. The largest
    difference says little there: mostly below 0.5, it was 4.5 at a single one of 792 tokens.
    Weights that are damaged, half loaded or another model's differ by whole units; a single
    training step with a small learning rate is below any limit in bfloat16.

    Args:
        tolerance: Takes the place of the number.
    """
    if "bfloat16" in dtypes:
        return Limit(of="mean", value=tolerance or MEAN_BFLOAT16)
    return Limit(of="largest", value=tolerance or LARGEST_FLOAT32)


def difference_of(
    expected: Sequence[Sequence[float]], actual: Sequence[Sequence[float]]
) -> Difference:
    """Between two scorings of the same prompts. What is not finite differs infinitely.

    Raises:
        ValueError: scorings of different shape.
    """
    distances = [
        (_distance(left, right), prompt, token)
        for prompt, pair in enumerate(zip(expected, actual, strict=True))
        for token, (left, right) in enumerate(zip(*pair, strict=True), start=1)
    ]
    largest, prompt, token = max(distances)
    mean = sum(distance for distance, *_ in distances) / len(distances)
    return Difference(mean=mean, largest=largest, prompt=prompt, token=token)


def _distance(left: float, right: float) -> float:
    distance = abs(left - right)
    return distance if math.isfinite(distance) else math.inf
