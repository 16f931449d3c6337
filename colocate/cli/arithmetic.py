"""Sums and products in the configuration tree: ``${add:1,2}``, ``${mul:2,3}``."""

from __future__ import annotations

import math

from omegaconf import OmegaConf


def register_arithmetic() -> None:
    """Makes both known to OmegaConf, once a process. Arguments are numbers or interpolations."""
    OmegaConf.register_new_resolver("add", _add, replace=True)
    OmegaConf.register_new_resolver("mul", _mul, replace=True)


def _add(*terms: float) -> float:
    return sum(terms)


def _mul(*factors: float) -> float:
    return math.prod(factors)
