"""Sums and products in the configuration tree: ``${add:1,2}``, ``${mul:2,rollout.max_turns}``."""

from __future__ import annotations

import math

from omegaconf import DictConfig, OmegaConf


def register_arithmetic() -> None:
    """Makes both known to OmegaConf, once a process. Arguments are numbers, interpolations or keys.

    Of anything else they make null: validation names the field that is no number. A key that has
    no value yet is such a case, where an interpolation of it would stop the whole composition.
    """
    OmegaConf.register_new_resolver("add", _add, replace=True)
    OmegaConf.register_new_resolver("mul", _mul, replace=True)


def _add(*terms: object, _root_: DictConfig) -> float | None:
    numbers = _numbers(terms, _root_)
    return sum(numbers) if len(numbers) == len(terms) else None


def _mul(*factors: object, _root_: DictConfig) -> float | None:
    numbers = _numbers(factors, _root_)
    return math.prod(numbers) if len(numbers) == len(factors) else None


def _numbers(arguments: tuple[object, ...], root: DictConfig) -> list[int | float]:
    values = [
        OmegaConf.select(root, argument) if isinstance(argument, str) else argument
        for argument in arguments
    ]
    return [value for value in values if isinstance(value, (int, float))]
