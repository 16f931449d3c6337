"""The engine worker on a CPU, with a sleep that gives memory back.

vLLM's ``CPUWorker`` ignores sleep. Here the storages themselves are dropped, under tensors that
stay where they are, so that nothing which refers to them has to know.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch import nn
from vllm.model_executor.model_loader.reload.layerwise import get_layerwise_info
from vllm.v1.worker.cpu_worker import CPUWorker

from colocate.adapters.freed_memory import return_freed_memory
from colocate.adapters.vllm.worker import ColocatedWorker


class ColocatedCPUWorker(ColocatedWorker, CPUWorker):  # type: ignore[misc]
    """Level 1 drops the KV cache and keeps the weights where they are: host memory *is* the device.

    Level 2 also drops every parameter, every buffer (kept as a copy, and put back by
    ``wake_up(["weights"])``: a publication does not bring rotary tables), and the packed copies
    that unquantized linear layers and heads compute with (``cpu_linear``; for those layers the
    packed copy is the only one there is). Layers that pack otherwise (quantized, MoE experts)
    keep their packed copies, and ``residency`` does not see those.

    After level 2 and ``wake_up(["weights"])`` parameters are NaN and packed layers refuse to
    compute until a whole update has been loaded.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._dropped: dict[str, list[tuple[torch.UntypedStorage, int]]] = {}

    def discard(self, tags: tuple[str, ...]) -> None:
        """Drops the KV cache alone.

        Raises:
            ValueError: other tags, which cannot be dropped without being saved.
            RuntimeError: where bytes that should be gone are still held.
        """
        if set(tags) != {"kv_cache"}:
            raise ValueError(f"discard: only 'kv_cache' can be discarded, not {sorted(tags)}")
        self._drop("kv_cache", self._kv_caches())
        self._release()

    def sleep(self, level: int = 1) -> None:
        """Drops what the level says and was not dropped before.

        Raises:
            RuntimeError: where bytes that should be gone are still held.
        """
        self._drop("kv_cache", self._kv_caches())
        if level == 2 and "weights" not in self._dropped:
            model = self.model_runner.get_model()
            self._sleep_saved_buffers = {
                name: buffer.detach().clone() for name, buffer in model.named_buffers()
            }
            self._drop("weights", [*model.parameters(), *model.buffers()])
            for layer in _packed_layers(model):
                layer.cpu_linear = _refuse_to_compute
        self._release()

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Takes memory back: the KV cache as zeros, parameters as NaN, buffers as they were."""
        for tag in tags if tags is not None else ["weights", "kv_cache"]:
            for storage, num_bytes in self._dropped.pop(tag, ()):
                storage.resize_(num_bytes)
            if tag == "kv_cache":
                for cache in self._kv_caches():
                    cache.zero_()
            elif self._sleep_saved_buffers:
                self._restore_weights()

    def residency(self) -> dict[str, int]:
        model = self.model_runner.get_model()
        storages = _distinct_storages([*model.parameters(), *model.buffers()])
        return {
            "weights": sum(storage.nbytes() for storage in storages)
            + sum(_packed_bytes(layer) for layer in _packed_layers(model)),
            "kv_cache": sum(storage.nbytes() for storage in _distinct_storages(self._kv_caches())),
        }

    def _restore_weights(self) -> None:
        model = self.model_runner.get_model()
        for parameter in model.parameters():
            if parameter.is_floating_point():
                parameter.data.fill_(math.nan)
        for name, buffer in model.named_buffers():
            buffer.copy_(self._sleep_saved_buffers[name])
        self._sleep_saved_buffers = {}

    def collect_garbage(self) -> None:
        gc.collect()
        return_freed_memory()

    def _release(self) -> None:
        return_freed_memory()
        held = self.residency()
        still = {tag: held[tag] for tag in self._dropped if held[tag] > 0}
        if still:
            raise RuntimeError(f"sleep: bytes still held after dropping them: {still}")

    def _drop(self, tag: str, tensors: Iterable[torch.Tensor]) -> None:
        if tag in self._dropped:
            return
        storages = _distinct_storages(tensors)
        self._dropped[tag] = [(storage, storage.nbytes()) for storage in storages]
        for storage in storages:
            storage.resize_(0)

    def _kv_caches(self) -> list[torch.Tensor]:
        caches: list[torch.Tensor] = []
        for cache in self.model_runner.kv_caches:
            caches.extend(cache if isinstance(cache, (list, tuple)) else [cache])
        return caches


def _distinct_storages(tensors: Iterable[torch.Tensor]) -> list[torch.UntypedStorage]:
    """Each storage once: views share one, and an empty one has no address to tell it by."""
    storages = {tensor.untyped_storage()._cdata: tensor.untyped_storage() for tensor in tensors}
    return list(storages.values())


def _packed_layers(model: nn.Module) -> list[Any]:
    return [layer for layer in model.modules() if hasattr(layer, "cpu_linear")]


def _packed_bytes(layer: Any) -> int:
    """Bytes of a layer's packed copy: those of the weight it was made from, as recorded at load."""
    if layer.cpu_linear is _refuse_to_compute:
        return 0
    weight = get_layerwise_info(layer).restore_metadata[0].get("weight")
    return 0 if weight is None else int(weight.nbytes)


def _refuse_to_compute(*_: Any) -> NoReturn:
    raise RuntimeError("this layer's weights were dropped by sleep(2) and not published since")
