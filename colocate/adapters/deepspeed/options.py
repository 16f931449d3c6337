"""DeepSpeed options of the user's, laid over those that the trainer needs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def merged(base: Mapping[str, Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """``base`` with ``options`` over it: mappings are merged key by key, all else is replaced."""
    result = dict(base)
    for key, value in options.items():
        below = result.get(key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            result[key] = merged(below, value)
        else:
            result[key] = value
    return result
