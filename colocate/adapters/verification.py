"""The comparison of the engine's log-probabilities of fixed prompts with the trainer's.

Names and checksums show that bytes arrived; this shows that what the engine computes with them is
what the trainer computes: layouts, packed copies, tied heads, buffers and caches included.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from colocate.core.types import Version

MAX_PROMPT_TOKENS = 64

TOLERANCES: Mapping[str, float] = {"float32": 1e-3, "bfloat16": 0.5}
"""Of natural log-probabilities, by the coarser type of the two sides. See ``tolerance_of``."""


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
    """The largest one between two scorings: of which prompt, at which token."""

    value: float
    prompt: int
    token: int


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


def tolerance_of(dtypes: Sequence[str]) -> float:
    """The largest difference that two right implementations show, with forward passes in these.

    float32: 1e-3, many times what differently ordered sums leave.

    bfloat16: 0.5. A value is rounded by up to 2^-9 of itself. Two implementations round at
    different places in each of the 2 L additions to the residual stream of L layers, which drifts
    apart by about ``sqrt(4 L) 2^-9`` of itself (0.02 for 30 layers), and the logits with it: with
    logits that spread over several units, 0.1, and three times that for the worst of a hundred
    tokens. Logits themselves, up to 32 in size, are rounded by up to 1/16 on either side.
    Weights that are damaged, half loaded or another model's differ by whole units.
    """
    return max(TOLERANCES[dtype] for dtype in dtypes)


def largest_difference(
    expected: Sequence[Sequence[float]], actual: Sequence[Sequence[float]]
) -> Difference:
    """Between two scorings of the same prompts. What is not finite differs infinitely.

    Raises:
        ValueError: scorings of different shape.
    """
    return max(
        (
            Difference(value=_distance(left, right), prompt=prompt, token=token + 1)
            for prompt, pair in enumerate(zip(expected, actual, strict=True))
            for token, (left, right) in enumerate(zip(*pair, strict=True))
        ),
        key=lambda difference: difference.value,
    )


def _distance(left: float, right: float) -> float:
    distance = abs(left - right)
    return distance if math.isfinite(distance) else math.inf
