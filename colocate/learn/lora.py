"""Low-rank adapters of a model, and its weights as they are with the adapters merged into them.

The only place that knows how PEFT names and scales adapters. A targeted layer's weight W (out, in)
acts as ``W + scale x B A``, with A (rank, in) and B (out, rank); Hu et al. 2021, LoRA, section 4.1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from colocate.config import LoraConfig
from colocate.learn.lora_targets import last_names, targeted, unknown_targets

MAX_MERGED_ELEMENTS = 2**22
"""Of a weight, merged at a time: 16 MiB in float32, twice."""

_BASE = ".base_layer."
_FACTOR = ".lora_"

_Value = TypeVar("_Value", bound=Tensor)


@dataclass(frozen=True, slots=True)
class Weight(Generic[_Value]):
    """A weight of the model, and the factors A and B of its adapter if it has one."""

    base: _Value
    factors: tuple[_Value, _Value] | None = None


def add_adapters(model: nn.Module, lora: LoraConfig, *, seed: int) -> None:
    """Freezes a model's weights, and gives targeted layers adapters of their type, to be trained.

    Factors A depend on ``seed`` alone, so all ranks draw the same. Factors B are zeros.

    Raises:
        ValueError: a target is no layer that could have an adapter.
    """
    # Imported here: PEFT takes seconds, and most runs train whole models.
    from peft import LoraConfig as PeftConfig
    from peft import inject_adapter_in_model
    from peft.tuners.lora import LoraLayer

    layers = adaptable_layers(model)
    if not layers:
        raise ValueError(
            f"model.lora does not go with {type(model).__name__}, which has no linear layer that "
            f"could have an adapter; set model.lora=null"
        )
    unknown = unknown_targets(lora.target_modules, layers)
    if unknown:
        raise ValueError(
            f"model.lora.target_modules names {', '.join(unknown)}, which is no layer of "
            f"{type(model).__name__} that can have an adapter; choose of "
            f"{', '.join(last_names(layers))}, or set it to all-linear"
        )
    chosen = targeted(lora.target_modules, layers)
    config = PeftConfig(
        r=lora.rank,
        lora_alpha=lora.alpha,
        use_rslora=lora.rank_stabilized,
        target_modules=chosen,
        lora_dropout=0.0,
        bias="none",
    )
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        inject_adapter_in_model(config, model)
    adapted = {name for name, each in model.named_modules() if isinstance(each, LoraLayer)}
    if adapted != set(chosen):
        raise ValueError(
            f"model.lora.target_modules={lora.target_modules!r} does not go with "
            f"{type(model).__name__}: PEFT adapts {sorted(adapted ^ set(chosen))} otherwise than "
            f"asked; name other layers, or set model.lora=null"
        )


def adaptable_layers(model: nn.Module) -> list[str]:
    """Names of linear layers whose weight no other module shares, but the output head."""
    modules = dict(model.named_modules())
    users = Counter(
        id(parameter)
        for module in modules.values()
        for parameter in module.parameters(recurse=False)
    )
    head = model.get_output_embeddings()  # type: ignore[operator]
    return [
        name
        for name, module in modules.items()
        if type(module) is nn.Linear and module is not head and users[id(module.weight)] == 1
    ]


@contextmanager
def without_adapters(model: nn.Module) -> Iterator[None]:
    """The model computes what it did before it had adapters. No gradient may be taken within."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer.enable_adapters(False)
    try:
        yield
    finally:
        for layer in layers:
            layer.enable_adapters(True)


def by_base_name(named: Iterable[tuple[str, _Value]]) -> dict[str, Weight[_Value]]:
    """Parameters, or entries of a state dictionary, by the names they have without adapters."""
    bases: dict[str, _Value] = {}
    factors: dict[str, dict[str, _Value]] = {}
    for name, value in named:
        layer, mark, rest = name.partition(_FACTOR)
        if mark:
            factors.setdefault(f"{layer}.weight", {})[rest[0]] = value
        else:
            bases[name.replace(_BASE, ".")] = value
    if not factors.keys() <= bases.keys():
        raise ValueError(f"adapters without a weight: {sorted(factors.keys() - bases.keys())}")
    return {
        name: Weight(base, (factors[name]["A"], factors[name]["B"]) if name in factors else None)
        for name, base in bases.items()
    }


def merged_pieces(
    base: Tensor,
    factors: tuple[Tensor, Tensor],
    *,
    scale: float,
    start: int = 0,
    max_elements: int = MAX_MERGED_ELEMENTS,
) -> Iterator[tuple[int, Tensor]]:
    """A run of elements of ``W + scale x B A``, computed in float32, a few rows at a time.

    Args:
        base: (n,), the elements of W from ``start`` on, in the order of its rows.
        factors: A (rank, in) and B (out, rank), whole.

    Yields:
        The place in ``base``, and float32 values (m,) from there on.
    """
    down, up = (each.float() for each in factors)
    width, stop = down.shape[1], start + len(base)
    last = -(-stop // width) if len(base) else 0
    step = max(1, max_elements // width)
    for row in range(start // width, last, step):
        rows = up[row : min(row + step, last)]
        update = (scale * (rows @ down)).reshape(-1)
        low, high = max(start, row * width), min(stop, (row + len(rows)) * width)
        piece = update[low - row * width : high - row * width]
        yield low - start, piece.add_(base[low - start : high - start].float())


@torch.no_grad()
def merged_state(state: Mapping[str, Tensor], *, scale: float) -> dict[str, Tensor]:
    """Float32 weights without adapters, which do what those of ``state`` do with theirs."""
    merged = {}
    for name, weight in by_base_name(state.items()).items():
        merged[name] = weight.base.float()
        if weight.factors is not None:
            pieces = merged_pieces(weight.base.reshape(-1), weight.factors, scale=scale)
            merged[name] = torch.cat([piece for _, piece in pieces]).view(weight.base.shape)
    return merged
