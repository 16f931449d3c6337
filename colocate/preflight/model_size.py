"""How large a model is, known before anything is loaded."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colocate.config import EmbeddedModelConfig
from colocate.embedded.model import CHARACTERS


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers of elements; tied weights count once.

    Attributes:
        largest: Of the two largest tensors, the larger one first.
    """

    parameters: int
    largest: tuple[int, int]


def model_size(path: str | None, embedded: Mapping[str, Any] | None) -> ModelSize | None:
    """Of the run's model, from ``model.path`` and ``model.embedded``.

    None where it cannot be known yet: a name on the hub, or a folder whose weights are no
    safetensors or cannot be read, of which loading will say what is wrong.
    """
    if embedded is not None:
        return _size_of_embedded(EmbeddedModelConfig.model_validate(embedded))
    return None if path is None else _size_of_folder(Path(path).expanduser())


def _size_of_embedded(model: EmbeddedModelConfig) -> ModelSize:
    """The tensors of Qwen3: no biases, and norms on queries and keys."""
    hidden = model.hidden_size
    vocabulary = (len(set(CHARACTERS)) + 1) * hidden
    queries = model.num_attention_heads * model.head_dim * hidden
    keys = model.num_key_value_heads * model.head_dim * hidden
    gate = model.intermediate_size * hidden
    layer = [*[queries] * 2, *[keys] * 2, *[gate] * 3, *[model.head_dim] * 2, *[hidden] * 2]
    embeddings = [vocabulary] * (1 if model.tie_word_embeddings else 2)
    return _size_of(layer * model.num_layers + embeddings + [hidden])


def _size_of(tensors: Iterable[int]) -> ModelSize:
    largest, second, *others = [*sorted(tensors, reverse=True), 0]
    return ModelSize(parameters=largest + second + sum(others), largest=(largest, second))


@functools.lru_cache(maxsize=8)
def _size_of_folder(folder: Path) -> ModelSize | None:
    from safetensors import SafetensorError, safe_open

    sizes: dict[str, int] = {}
    try:
        for file in _weight_files(folder):
            with safe_open(file, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - it is not a mapping
                    sizes[name] = math.prod(tensors.get_slice(name).get_shape())
        if json.loads((folder / "config.json").read_text()).get("tie_word_embeddings"):
            sizes.pop("lm_head.weight", None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError):
        return None
    if not sizes:
        return None
    return _size_of(sizes.values())


def _weight_files(folder: Path) -> list[Path]:
    """Those that the index lists, where there is one: other files may hold the same weights."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = set(json.loads(index.read_text())["weight_map"].values())
        return [folder / name for name in sorted(names)]
    whole = folder / "model.safetensors"
    return [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
