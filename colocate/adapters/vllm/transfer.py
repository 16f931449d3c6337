"""Weight updates inside an engine worker: one packed bucket after another, each byte accounted for.

vLLM's layer-wise reload does the loading: while an update runs, a layer's tensors are collected,
and when it has all of them they are put through the same processing as at start (sharding, fusing,
packing for the CPU's kernels) and copied over the old ones. What it does not do is notice that
something was never sent; that is done here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.model_executor.layers.attention import is_deferred_attention_layer
from vllm.model_executor.model_loader.mtp_validation import disable_mtp_completeness_check
from vllm.model_executor.model_loader.reload.layerwise import (
    finalize_layerwise_reload,
    get_layerwise_info,
    initialize_layerwise_reload,
)

from colocate.adapters.checksum import tensor_checksum
from colocate.adapters.vllm.buffers import OpenBuffers
from colocate.adapters.vllm.checkpoint import checkpoint_names

_DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@dataclass
class NoInitInfo(WeightTransferInitInfo):  # type: ignore[misc]
    """Nothing has to be agreed on beforehand: each bucket describes itself."""


@dataclass
class BucketInfo(WeightTransferUpdateInfo):  # type: ignore[misc]
    """``ports.WeightBucket`` as plain data: ``dataclasses.asdict`` of it."""

    handle: Mapping[str, Any]
    entries: Sequence[Mapping[str, Any]]


class StreamedWeightTransferEngine(WeightTransferEngine[NoInitInfo, BucketInfo]):  # type: ignore[misc]
    """Receives one complete set of weights per update.

    An update that fails leaves the model unusable until a later one succeeds from its start.

    Attributes:
        seconds: What the last update took so far, by part: ``"receive_checksum"``, ``"load"``
            (vLLM's reload, which copies out of the bucket), ``"finish"``.
    """

    init_info_cls = NoInitInfo
    update_info_cls = BucketInfo

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._awaited: set[str] = set()
        self._buffers = OpenBuffers(self.device)
        self._copies: torch.Tensor | None = None
        self.seconds: dict[str, float] = {}

    def init_transfer_engine(self, init_info: NoInitInfo) -> None:
        return

    def expected_names(self) -> list[str]:
        """Names of the tensors that make one update, sorted."""
        tied = bool(getattr(self.model_config.hf_text_config, "tie_word_embeddings", False))
        return checkpoint_names(self.model_config.model, tied_embeddings=tied)

    def start_weight_update(self) -> None:
        self.seconds = {}
        self._buffers.close()
        with self._timed("load"):
            _forget_unfinished_update(self.model)
            initialize_layerwise_reload(self.model)
        self._awaited = set(self.expected_names())

    @torch.no_grad()
    def receive_weights(self, update_info: BucketInfo) -> None:
        """Checks every tensor of a bucket, then loads them.

        Raises:
            RuntimeError: a name that is not awaited (unknown, or sent twice), or a checksum that
                differs.
            ValueError: an entry that does not describe bytes of the buffer.
        """
        buffer = self._buffers.open(update_info.handle)
        with self._timed("receive_checksum"):
            weights = [(entry["name"], _checked(buffer, entry)) for entry in update_info.entries]
        for name, _ in weights:
            if name not in self._awaited:
                raise RuntimeError(
                    f"weight update: {name!r} is not awaited: the model has no such weight, or "
                    "it came twice; publish each weight of the checkpoint once"
                )
            self._awaited.remove(name)
        with self._timed("load"), disable_mtp_completeness_check():
            self.model.load_weights(weights)
            _detach_from(buffer, self.model)

    @torch.no_grad()
    def finish_weight_update(self) -> None:
        """Completes the update.

        Raises:
            RuntimeError: a weight that was not sent, or a layer that took none.
        """
        if self._awaited:
            missing = sorted(self._awaited)
            raise RuntimeError(
                f"weight update: {len(missing)} weights were never sent, among them {missing[:3]}"
            )
        with self._timed("finish"):
            _require_all_loaded(self.model)
            finalize_layerwise_reload(self.model, self.model_config)
            _repack_shared_weights(self.model)
        self._buffers.close()

    def copy_bucket(self, handle: Mapping[str, Any], entries: Sequence[Mapping[str, Any]]) -> float:
        """Copies a bucket's tensors to memory of its own; returns the seconds that took.

        The time begins with the mapping of the bucket. The memory is kept for the next bucket,
        until ``drop_copies``.
        """
        began = time.perf_counter()
        buffer = self._buffers.open(handle)
        if self._copies is None or self._copies.numel() < buffer.numel():
            self._copies = torch.empty_like(buffer)
        for entry in entries:
            place = slice(entry["offset"], entry["offset"] + entry["num_bytes"])
            if self.device.type == "cpu":
                np.copyto(self._copies[place].numpy(), buffer[place].numpy())
            else:
                self._copies[place].copy_(buffer[place])
        _wait_for(self.device)
        return time.perf_counter() - began

    def drop_copies(self) -> None:
        self._copies = None
        self._buffers.close()

    def break_off(self) -> None:
        """Lets go of the sender's memory, and of what was collected, in the middle of an update."""
        _forget_unfinished_update(self.model)
        self._buffers.close()

    def shutdown(self) -> None:
        self._awaited = set()
        self.drop_copies()

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        _wait_for(self.device)
        self.seconds[part] = self.seconds.get(part, 0.0) + time.perf_counter() - began


def _wait_for(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize()


def _checked(buffer: torch.Tensor, entry: Mapping[str, Any]) -> torch.Tensor:
    """The tensor that ``entry`` describes, as a view of ``buffer``, its checksum verified."""
    name, shape, dtype = entry["name"], tuple(entry["shape"]), _DTYPES.get(entry["dtype"])
    if dtype is None:
        raise ValueError(f"{name}: dtype must be one of {sorted(_DTYPES)}, is {entry['dtype']!r}")
    offset, num_bytes = entry["offset"], entry["num_bytes"]
    if num_bytes != math.prod(shape) * dtype.itemsize:
        raise ValueError(f"{name}: num_bytes is {num_bytes}, but {shape} {dtype} takes another")
    if offset % dtype.itemsize != 0 or not 0 <= offset <= buffer.numel() - num_bytes:
        raise ValueError(
            f"{name}: bytes {offset} to {offset + num_bytes} must lie, aligned to "
            f"{dtype.itemsize}, in the buffer's {buffer.numel()}"
        )
    tensor = buffer[offset : offset + num_bytes].view(dtype).view(shape)
    checksum = tensor_checksum(tensor)
    if checksum != entry["checksum"]:
        raise RuntimeError(
            f"weight update: {name} was sent with checksum {entry['checksum']} and arrived with "
            f"{checksum}; the bucket was changed on its way"
        )
    return tensor


def _forget_unfinished_update(model: nn.Module) -> None:
    """Drops what a broken update had collected, or the next one would count it as its own."""
    for layer in model.modules():
        info = get_layerwise_info(layer)
        if info.can_load():
            info.loaded_weights.clear()
            info.load_numel = 0


def _detach_from(buffer: torch.Tensor, model: nn.Module) -> None:
    """Copies tensors that wait for the rest of their layer out of the buffer.

    The sender takes the buffer back when the bucket is acknowledged, and a layer may be cut by a
    bucket's end.
    """
    address = buffer.untyped_storage().data_ptr()
    for layer in model.modules():
        for _, call in get_layerwise_info(layer).loaded_weights:
            for name, value in call.arguments.items():
                if (
                    isinstance(value, torch.Tensor)
                    and not value.is_meta
                    and value.untyped_storage().data_ptr() == address
                ):
                    call.arguments[name] = value.clone()


def _require_all_loaded(model: nn.Module) -> None:
    """Every layer with parameters took some, or shares them with one that did.

    A layer that took only part is none of this function's business: vocabularies are padded, so
    parts are usual, and a part that was not *sent* is found by its name. A shard that is nothing
    but padding took none of a tensor that it was offered; vLLM would keep the old one and not
    process it, so it is counted as one that took some.
    """
    loaded: set[int] = set()
    idle: dict[str, dict[str, torch.Tensor]] = {}
    for name, layer in model.named_modules():
        info = get_layerwise_info(layer)
        pending = info.can_load()
        parameters = info.kernel_tensors[0] if pending else dict(layer._parameters)
        if pending and info.loaded_weights:
            info.load_numel = max(1, info.load_numel)
        if not pending or info.loaded_weights:
            loaded.update(id(parameter) for parameter in parameters.values())
        elif parameters and not is_deferred_attention_layer(layer):
            idle[name] = parameters
    missed = [
        name
        for name, parameters in idle.items()
        if not all(id(parameter) in loaded for parameter in parameters.values())
    ]
    if missed:
        raise RuntimeError(
            f"weight update: {len(missed)} layers took no weights, among them {missed[:3]}"
        )


def _repack_shared_weights(model: nn.Module) -> None:
    """Packs again what layers that share one parameter (tied embeddings) have each packed.

    On CPU every linear layer and head computes with a packed copy of its own (``cpu_linear``),
    and the reload renews only the copy of the layer that the tensor was sent to: a tied output
    head would go on with the old weights.
    """
    sharing: dict[int, list[Any]] = {}
    for layer in model.modules():
        weight = layer._parameters.get("weight")
        if weight is not None and hasattr(layer, "cpu_linear"):
            sharing.setdefault(id(weight), []).append(layer)
    for layers in sharing.values():
        if len(layers) > 1:
            for layer in layers:
                layer.quant_method.process_weights_after_loading(layer)
