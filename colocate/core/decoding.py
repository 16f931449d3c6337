"""How fast the engine decodes and prefills, learned from whole requests.

An engine with continuous batching takes one step for all running sequences: the weights are read
once, and each sequence adds its own part. So a request's time is

    duration = tokens x (base + per_sequence x concurrency) + per_prefill_token x prefilled

where ``concurrency`` is the mean number of running requests over its life, and ``prefilled`` the
tokens that the engine read meanwhile, its own and its neighbours'. The three coefficients, none
below 0, come from iteratively reweighted least squares with Huber's weights (Huber 1964), on a
bounded number of the latest requests of each octave of concurrency: the few that run alone in the
long tail count as much as the many that run in a crowd.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from colocate.core.estimates import UNKNOWN, Estimate, deviation, median

POINTS_PER_OCTAVE = 32
NUM_OCTAVES = 16
ROUNDS = 5
HUBER = 1.345
"""Residuals of more standard deviations than this weigh less: 95% efficient for normal errors."""
NUM_EARLY_FITS = 8
"""Fits made between swaps too, each after ``NEW_POINTS`` more requests; later, one a swap."""
NEW_POINTS = 64

_Point = tuple[float, float, float, float]
"""Weight, concurrency, tokens prefilled per token decoded, seconds per token decoded."""


@dataclass(frozen=True, slots=True)
class DecodeFit:
    """Seconds; ``covariance`` is of the three coefficients, in their order."""

    base_s: float
    per_sequence_s: float
    per_prefill_token_s: float
    covariance: tuple[tuple[float, ...], ...]

    def token_s(self, concurrency: float) -> float:
        """Seconds from one token of a sequence to its next."""
        return max(1e-12, self.base_s + self.per_sequence_s * concurrency)


class DecodeModel:
    def __init__(self) -> None:
        self._points: list[deque[_Point]] = [
            deque(maxlen=POINTS_PER_OCTAVE) for _ in range(NUM_OCTAVES)
        ]
        self._fit: DecodeFit | None = None
        self._num_new = 0
        self._num_fits = 0

    def observe(
        self, *, num_tokens: int, duration_s: float, concurrency: float, num_prefilled: float
    ) -> None:
        """A request that decoded ``num_tokens`` has returned, whole or aborted."""
        if num_tokens < 1 or duration_s <= 0:
            return
        concurrency = max(1.0, concurrency)
        octave = min(int(math.log2(concurrency)), NUM_OCTAVES - 1)
        weight = min(num_tokens, 64) ** 0.5
        self._points[octave].append(
            (weight, concurrency, num_prefilled / num_tokens, duration_s / num_tokens)
        )
        self._num_new += 1

    @property
    def is_known(self) -> bool:
        return any(self._points)

    def refresh(self) -> None:
        """Fits anew at the next question, if anything was seen since."""
        if self._num_new:
            self._fit = None

    def fit(self) -> DecodeFit | None:
        """None where no request has returned yet."""
        early = self._num_new >= NEW_POINTS and self._num_fits < NUM_EARLY_FITS
        if (self._fit is None or early) and self.is_known:
            self._fit = _fit([point for octave in self._points for point in octave])
            self._num_new = 0
            self._num_fits += 1
        return self._fit

    def rate(self, concurrency: float) -> Estimate:
        """Tokens a second of all of ``concurrency`` running requests together."""
        fit = self.fit()
        if fit is None or concurrency <= 0:
            return UNKNOWN if fit is None else Estimate(0.0, 0.0)
        token_s = fit.token_s(concurrency)
        vector = (1.0, concurrency, 0.0)
        variance = sum(
            vector[i] * vector[j] * fit.covariance[i][j] for i in range(3) for j in range(3)
        )
        value = concurrency / token_s
        return Estimate(value, value * math.sqrt(max(0.0, variance)) / token_s)

    def marginal_rate(self, concurrency: float) -> float:
        """Tokens a second that one running request more adds: the derivative of ``rate``."""
        fit = self.fit()
        if fit is None:
            return 0.0
        token_s = fit.token_s(concurrency)
        return fit.base_s / (token_s * token_s)

    def prefill_s(self, num_tokens: float) -> Estimate:
        """Seconds of the engine that reading so many tokens takes."""
        fit = self.fit()
        if fit is None:
            return UNKNOWN
        error = math.sqrt(max(0.0, fit.covariance[2][2]))
        return Estimate(fit.per_prefill_token_s, error).times(num_tokens)

    def snapshot(self) -> list[list[list[float]]]:
        return [[list(point) for point in octave] for octave in self._points]

    def restore(self, octaves: Iterable[Iterable[Sequence[float]]]) -> None:
        for kept, octave in zip(self._points, octaves, strict=False):
            kept.extend((float(w), float(c), float(p), float(y)) for w, c, p, y in octave)
        self._fit = None


_CHOICES = tuple(sorted(product((True, False), repeat=3), key=sum, reverse=True))[:-1]
"""Which coefficients are free: all three first, then two, then one."""


def _fit(points: list[_Point]) -> DecodeFit:
    """Of the fits with the most free coefficients of which none is below 0, the best."""
    weights = [p[0] for p in points]
    typical = _typical(points)
    best: tuple[float, list[float], list[float]] | None = None
    num_free = len(_CHOICES[0])
    for uses in _CHOICES:
        if best is not None and sum(uses) < num_free:
            break
        num_free = sum(uses)
        found = _reweighted(points, weights, typical, uses)
        if found is None or min(found[1]) < 0:
            continue
        if best is None or found[0] < best[0]:
            best = found
    assert best is not None, "one coefficient alone always fits: all values are positive"
    _, coefficients, final = best
    uses = tuple(c > 0 for c in coefficients)
    residuals = [_residual(p, coefficients) for p in points]
    spread = max(deviation(residuals), 1e-3 * median([p[3] for p in points]))
    covariance = _covariance(points, final, uses, spread)
    return DecodeFit(coefficients[0], coefficients[1], coefficients[2], covariance)


def _typical(points: list[_Point]) -> Mapping[int, float]:
    """Median seconds a token by octave of concurrency: where outliers are told from."""
    by_octave: dict[int, list[float]] = {}
    for point in points:
        by_octave.setdefault(int(math.log2(point[1])), []).append(point[3])
    return {octave: median(values) for octave, values in by_octave.items()}


def _features(point: _Point) -> tuple[float, float, float]:
    return 1.0, point[1], point[2]


def _residual(point: _Point, coefficients: Sequence[float]) -> float:
    predicted = sum(c * f for c, f in zip(coefficients, _features(point), strict=True))
    return point[3] - predicted


def _reweighted(
    points: list[_Point],
    weights: list[float],
    typical: Mapping[int, float],
    uses: tuple[bool, ...],
) -> tuple[float, list[float], list[float]] | None:
    """Huber's loss, coefficients and final weights; None where the system is singular."""
    first = [p[3] - typical[int(math.log2(p[1]))] for p in points]
    scale = max(deviation(first), 1e-9)
    current = [w * _huber(r, 2 * scale) for w, r in zip(weights, first, strict=True)]
    coefficients: list[float] | None = None
    for _ in range(ROUNDS):
        coefficients = _solve(points, current, uses)
        if coefficients is None:
            return None
        residuals = [_residual(p, coefficients) for p in points]
        scale = max(deviation(residuals), 1e-9)
        current = [w * _huber(r, scale) for w, r in zip(weights, residuals, strict=True)]
    assert coefficients is not None
    limit = 0.1 * median(typical.values())  # one scale, on which all candidates are judged
    loss = sum(w * _huber_loss(r, limit) for w, r in zip(weights, residuals, strict=True))
    return loss, coefficients, current


def _huber(residual: float, scale: float) -> float:
    size = abs(residual)
    return 1.0 if size <= HUBER * scale else HUBER * scale / size


def _huber_loss(residual: float, limit: float) -> float:
    size = abs(residual)
    return size * size / 2 if size <= limit else limit * (size - limit / 2)


def _normal(
    points: list[_Point], weights: list[float], used: list[int]
) -> tuple[list[list[float]], list[float]]:
    size = len(used)
    matrix = [[0.0] * size for _ in range(size)]
    right = [0.0] * size
    for point, weight in zip(points, weights, strict=True):
        features = _features(point)
        for a, i in enumerate(used):
            scaled = weight * features[i]
            right[a] += scaled * point[3]
            for b, j in enumerate(used):
                matrix[a][b] += scaled * features[j]
    return matrix, right


def _solve(
    points: list[_Point], weights: list[float], uses: tuple[bool, ...]
) -> list[float] | None:
    used = [i for i, use in enumerate(uses) if use]
    matrix, right = _normal(points, weights, used)
    inverse = _invert(matrix)
    if inverse is None:
        return None
    coefficients = [0.0] * len(uses)
    for a, i in enumerate(used):
        coefficients[i] = sum(inverse[a][b] * right[b] for b in range(len(used)))
    return coefficients


def _covariance(
    points: list[_Point], weights: list[float], uses: tuple[bool, ...], spread: float
) -> tuple[tuple[float, ...], ...]:
    """Of the coefficients in use; those that are held at 0 count as known."""
    used = [i for i, use in enumerate(uses) if use]
    matrix, _ = _normal(points, [1.0] * len(points), used)
    inverse = _invert(matrix)
    full = [[0.0] * len(uses) for _ in uses]
    # Unequal weights and the loss of efficiency of Huber's estimate widen it a little.
    total, squares = sum(weights), sum(w * w for w in weights)
    inflation = len(points) * squares / (total * total) / 0.95
    for a, i in enumerate(used):
        for b, j in enumerate(used):
            known = 0.0 if inverse is None else inverse[a][b]
            full[i][j] = known * spread * spread * inflation
    return tuple(tuple(row) for row in full)


def _invert(matrix: list[list[float]]) -> list[list[float]] | None:
    """By Gauss and Jordan with scaling; None where it is singular to working precision."""
    size = len(matrix)
    scales = [math.sqrt(matrix[i][i]) if matrix[i][i] > 0 else 0.0 for i in range(size)]
    if not all(scales):
        return None
    rows = [
        [matrix[i][j] / (scales[i] * scales[j]) for j in range(size)]
        + [float(i == j) for j in range(size)]
        for i in range(size)
    ]
    for column in range(size):
        pivot = max(range(column, size), key=lambda r: abs(rows[r][column]))
        if abs(rows[pivot][column]) < 1e-6:
            return None
        rows[column], rows[pivot] = rows[pivot], rows[column]
        head = rows[column][column]
        rows[column] = [value / head for value in rows[column]]
        for other in range(size):
            if other != column:
                factor = rows[other][column]
                rows[other] = [
                    a - factor * b for a, b in zip(rows[other], rows[column], strict=True)
                ]
    return [[rows[i][size + j] / (scales[i] * scales[j]) for j in range(size)] for i in range(size)]
