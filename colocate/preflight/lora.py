"""Rules of ``model.lora``, and how much of a model its adapters are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from colocate.config import LoraConfig
from colocate.learn.lora_targets import is_embedding, last_names, targeted, unknown_targets
from colocate.preflight.model_size import Shapes, model_size, tensor_shapes
from colocate.preflight.table import rule
from colocate.problems import Problem, nearest

_FIELD = "model.lora.target_modules"


@rule(_FIELD, "model.path", "model.embedded")
def _targets_are_layers_of_the_model(
    targets: str | Sequence[str], path: str | None, embedded: Mapping[str, Any] | None
) -> Iterator[Problem]:
    """As far as names can tell; the trainer knows for certain, once it has loaded the model."""
    heads = [] if isinstance(targets, str) else [each for each in targets if is_embedding(each)]
    if heads:
        yield Problem(
            field=_FIELD,
            value=list(targets),
            rule=f"must not name embeddings or an output head ({', '.join(heads)}): these have no "
            "adapter here",
            remedy=f"take {', '.join(heads)} out of it, or set it to all-linear",
        )
    shapes = tensor_shapes(path, embedded)
    if shapes is None:
        return
    layers = list(_layers(shapes))
    unknown = [each for each in unknown_targets(targets, layers) if not is_embedding(each)]
    if unknown:
        names = last_names(layers)
        guess = nearest(unknown[0].rpartition(".")[2], names)
        yield Problem(
            field=_FIELD,
            value=list(targets),
            rule=f"names no layer of the model that could have an adapter: {', '.join(unknown)}",
            remedy=(f"did you mean `{guess}`? " if guess else "")
            + f"The layers are called {', '.join(names)}",
        )


def num_elements(
    path: str | None, embedded: Mapping[str, Any] | None, lora: Mapping[str, Any] | None
) -> tuple[int, int] | None:
    """Of a trainer's parameters: all of them, and those that are trained.

    None where the model's size cannot be known yet.

    Args:
        lora: ``model.lora``, with its defaults left out or filled in.
    """
    size, shapes = model_size(path, embedded), tensor_shapes(path, embedded)
    if size is None or shapes is None:
        return None
    if lora is None:
        return size.parameters, size.parameters
    filled = LoraConfig.model_validate(dict(lora))
    layers = _layers(shapes)
    adapters = filled.rank * sum(
        sum(layers[name]) for name in targeted(filled.target_modules, layers)
    )
    return size.parameters + adapters, adapters


def _layers(shapes: Shapes) -> dict[str, tuple[int, ...]]:
    """Shapes of the matrices that are neither embeddings nor heads, by their modules' names."""
    modules = {name.removesuffix(".weight"): shape for name, shape in shapes.items()}
    return {
        name: shape
        for name, shape in modules.items()
        if f"{name}.weight" in shapes and len(shape) == 2 and not is_embedding(name)
    }
