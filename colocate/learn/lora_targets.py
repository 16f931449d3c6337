"""Which layers of a model get a low-rank adapter. Reads names only; imports no torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ALL_LINEAR = "all-linear"

EMBEDDINGS = frozenset(
    {
        "embed_in",
        "embed_out",
        "embed_positions",
        "embed_tokens",
        "lm_head",
        "word_embeddings",
        "wpe",
        "wte",
    }
)
"""Names of embeddings and output heads, the head among them, since many models tie the two."""


def is_embedding(module: str) -> bool:
    """Whether a module of this name is an embedding or an output head."""
    return module.rpartition(".")[2] in EMBEDDINGS


def matches(target: str, module: str) -> bool:
    """Whether a target means a module: by its whole name, or by the end of it, as in PEFT."""
    return module == target or module.endswith(f".{target}")


def targeted(targets: str | Sequence[str], modules: Iterable[str]) -> list[str]:
    """Those modules that are meant, in order. ``targets``: as in ``model.lora.target_modules``."""
    if isinstance(targets, str):
        return list(modules)
    return [module for module in modules if any(matches(target, module) for target in targets)]


def unknown_targets(targets: str | Sequence[str], modules: Sequence[str]) -> list[str]:
    """Targets that mean none of the modules."""
    if isinstance(targets, str):
        return []
    return [each for each in targets if not any(matches(each, module) for module in modules)]


def last_names(modules: Iterable[str]) -> list[str]:
    """What the modules are called in their layers, sorted: what a list of targets is made of."""
    return sorted({module.rpartition(".")[2] for module in modules})
