"""Which tensors a model has, and how large it is, known before anything is loaded."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from colocate.config import EmbeddedModelConfig
from colocate.embedded.model import CHARACTERS

Shapes = Mapping[str, tuple[int, ...]]
"""Of a model's tensors, by name."""


@dataclass(frozen=True, slots=True)
class ModelSize:
    """Numbers of elements; tied weights count once.

    Attributes:
        largest: Of the two largest tensors, the larger one first.
    """

    parameters: int
    largest: tuple[int, int]


def model_size(path: str | None, embedded: Mapping[str, Any] | None) -> ModelSize | None:
    """Of the run's model; None where it cannot be known yet."""
    shapes = tensor_shapes(path, embedded)
    if shapes is None:
        return None
    largest, second, *others = [*sorted(map(math.prod, shapes.values()), reverse=True), 0]
    return ModelSize(parameters=largest + second + sum(others), largest=(largest, second))


def tensor_shapes(path: str | None, embedded: Mapping[str, Any] | None) -> Shapes | None:
    """Of the run's model, from ``model.path`` and ``model.embedded``; tied weights once.

    None where it cannot be known yet: a name on the hub, or a folder whose weights are no
    safetensors or cannot be read, of which loading will say what is wrong.
    """
    if embedded is not None:
        return _shapes_of_embedded(EmbeddedModelConfig.model_validate(embedded))
    return None if path is None else _shapes_in_folder(Path(path).expanduser())


def _shapes_of_embedded(model: EmbeddedModelConfig) -> Shapes:
    """The tensors of Qwen3: no biases, and norms on queries and keys."""
    hidden, gate = model.hidden_size, model.intermediate_size
    queries = model.num_attention_heads * model.head_dim
    keys = model.num_key_value_heads * model.head_dim
    layer: Shapes = {
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "self_attn.q_norm": (model.head_dim,),
        "self_attn.k_norm": (model.head_dim,),
        "mlp.gate_proj": (gate, hidden),
        "mlp.up_proj": (gate, hidden),
        "mlp.down_proj": (hidden, gate),
        "input_layernorm": (hidden,),
        "post_attention_layernorm": (hidden,),
    }
    vocabulary = (len(set(CHARACTERS)) + 1, hidden)
    head: Shapes = {} if model.tie_word_embeddings else {"lm_head.weight": vocabulary}
    return {
        "model.embed_tokens.weight": vocabulary,
        **{
            f"model.layers.{index}.{name}.weight": shape
            for index in range(model.num_layers)
            for name, shape in layer.items()
        },
        "model.norm.weight": (hidden,),
        **head,
    }


@functools.lru_cache(maxsize=8)
def _shapes_in_folder(folder: Path) -> Shapes | None:
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    try:
        for file in _weight_files(folder):
            with safe_open(file, framework="numpy") as tensors:
                for name in tensors.keys():  # noqa: SIM118 - it is not a mapping
                    shapes[name] = tuple(tensors.get_slice(name).get_shape())
        if json.loads((folder / "config.json").read_text()).get("tie_word_embeddings"):
            shapes.pop("lm_head.weight", None)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, SafetensorError):
        return None
    return shapes or None


def _weight_files(folder: Path) -> list[Path]:
    """Those that the index lists, where there is one: other files may hold the same weights."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = set(json.loads(index.read_text())["weight_map"].values())
        return [folder / name for name in sorted(names)]
    whole = folder / "model.safetensors"
    return [whole] if whole.is_file() else sorted(folder.glob("*.safetensors"))
