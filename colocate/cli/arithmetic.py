"""Sums and products in the configuration tree: ``${add:1,2}``, ``${mul:2,3}``."""

from __future__ import annotations

import math

from omegaconf import OmegaConf


def register_arithmetic() -> None:
    """Makes both known to OmegaConf, once a process. Arguments are numbers or interpolations.

    Of anything else they make null: validation names the field that is no number.
    """
    OmegaConf.register_new_resolver("add", _add, replace=True)
    OmegaConf.register_new_resolver("mul", _mul, replace=True)


def _add(*terms: object) -> float | None:
    numbers = [term for term in terms if isinstance(term, (int, float))]
    return sum(numbers) if len(numbers) == len(terms) else None


def _mul(*factors: object) -> float | None:
    numbers = [factor for factor in factors if isinstance(factor, (int, float))]
    return math.prod(numbers) if len(numbers) == len(factors) else None
