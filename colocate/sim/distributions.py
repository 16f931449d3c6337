"""Random quantities of the simulated world, drawn from a configured family."""

from __future__ import annotations

import math
from collections.abc import Callable
from random import Random

from colocate.config import DistributionConfig

Draw = Callable[[], float]
"""One more value, independent of the others."""


def make_draw(config: DistributionConfig, random: Random) -> Draw:
    """What draws from the distribution with this source of randomness.

    Raises:
        ValueError: an empirical distribution without values.
    """
    draw = _uncapped(config, random)
    cap = config.cap
    return draw if cap is None else lambda: min(cap, draw())


def _uncapped(config: DistributionConfig, random: Random) -> Draw:
    scale, shape = config.scale, config.shape
    match config.kind:
        case "constant":
            return lambda: scale
        case "uniform":
            return lambda: scale * random.random()
        case "exponential":
            return lambda: -scale * math.log1p(-random.random())
        case "lognormal":
            return lambda: scale * math.exp(shape * random.gauss(0.0, 1.0))
        case "pareto":
            return lambda: scale * random.paretovariate(shape)
        case "empirical":
            values = config.values
            if not values:
                raise ValueError("an empirical distribution needs at least one value")
            return lambda: random.choice(values)
