"""How each part of a rank's state leaves the device and comes back.

DeepSpeed moves what it can. Not gradients: it would carry them to the host and back, although
between steps they hold nothing. Nor master weights and moments under ZeRO 3, which it moves only
for an optimizer of its own that needs a compiler; nor anything without ZeRO, or the reference.
Nor parameters that are not trained, as those beside adapters: ZeRO 1 and 2 leave them where they
are, and ZeRO 3 cannot move any parameter then, since it looks for all of them in a buffer that
holds the trained ones only.

Never run here: what only a GPU needs (pinned copies, transfers that overlap). It is written after
DeepSpeed 0.19.8 and torch 2.13.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any

import torch
from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum
from torch import Tensor, nn

from colocate.adapters.freed_memory import return_freed_memory
from colocate.core.types import Part

STATE_PARTS = frozenset({Part.PARAMETERS, Part.GRADIENTS, Part.OPTIMIZER})

_TRANSIENT = (
    "averaged_gradients",
    "all_grad_tensors",
    "grads_in_partition",
    "grad_partitions_flat_buffer",
    "temp_grad_buffer_for_cpu_offload",
    "temp_grad_buffer_for_gpu_offload",
    "accumulated_grads_in_cpu",
)
"""Attributes of DeepSpeed's ZeRO optimizers, where they have them, that hold gradients."""

_PINNED = ("hp_params_pin_buffers", "lp_params_pin_buffers", "lp_param_contiguous_pin_buffer")
"""Attributes that hold the host's copies."""


class ZeroState:
    """Parameters, gradients and optimizer state of one rank's DeepSpeed engine.

    Attributes:
        offloaded: Parts that are off the device. On CPU, where the host is the device, they are
            marked all the same, and only gradients are gone.
    """

    def __init__(self, engine: Any, *, stage: int, device: torch.device) -> None:
        self.offloaded: frozenset[Part] = frozenset()
        self._engine = engine
        self._stage = stage
        self._device = device
        self._gradients = EmptiedStorages(device)
        self._moved = HostCopies(device)
        self._frozen = HostCopies(device, keep=True)
        self._views = MovedViews(device)
        self._moved_by_deepspeed = False

    def tensors(self) -> dict[Part, object]:
        """What holds each part now, as ``flat`` reads it."""
        optimizer, parameters = self._engine.optimizer, list(self._engine.module.parameters())
        gradients: list[object] = [[p.grad, getattr(p, "grad_accum", None)] for p in parameters]
        held: list[object] = [parameters]
        masters: list[object] = []
        if self._stage == 3:
            held = [optimizer.lp_param_buffer, [p.ds_tensor for p in parameters]]
            masters = [optimizer.fp32_partitioned_groups_flat]
        elif self._stage > 0:
            held = [optimizer.bit16_groups_flat, parameters]
            staged = getattr(optimizer, "param_buffer_of_bit16_for_cpu_offload_groups", None)
            masters = [optimizer.single_partition_of_fp32_groups, staged]
        if self._stage > 0:
            gradients += [getattr(optimizer, name, None) for name in _TRANSIENT]
            gradients += [bucket.buffer for bucket in optimizer.ipg_buckets.values()]
            gradients += [master.grad for master in flat(masters)]
        moments = list(self._engine.basic_optimizer.state.values())
        return {
            Part.PARAMETERS: held,
            Part.GRADIENTS: gradients,
            Part.OPTIMIZER: [masters, moments],
        }

    def host_copies(self) -> list[object]:
        """Pinned memory that a move has filled, or has left behind for the next."""
        kept = [getattr(self._engine.optimizer, name, None) for name in _PINNED]
        return [kept, self._moved.hosts(), self._frozen.hosts()]

    def settle(self, parts: Collection[Part]) -> None:
        """Lets go of what the last step has left of these parts and the next makes anew."""
        if Part.GRADIENTS in parts:
            self._engine.optimizer.zero_grad(set_to_none=True)
        if Part.PARAMETERS in parts and self._stage == 3:
            # Small parameters stay gathered between steps.
            self._engine.optimizer.empty_partition_cache()

    def offload(self, parts: Collection[Part]) -> None:
        """Moves those of these parts that are on the device."""
        leaving = (STATE_PARTS & frozenset(parts)) - self.offloaded
        if not leaving:
            return
        _synchronize(self._device)
        held = self.tensors()
        kinds: list[OffloadStateTypeEnum] = []
        if Part.GRADIENTS in leaving:
            self._gradients.empty(flat(held[Part.GRADIENTS]))
        if Part.PARAMETERS in leaving:
            frozen = self.frozen_tensors()
            self._frozen.offload(frozen)
            if self._stage == 0:
                self._moved.offload(flat(held[Part.PARAMETERS]))
            elif self._stage == 3 and frozen:
                self._views.offload(self.trained_views())
            else:
                kinds += [OffloadStateTypeEnum.lp_params]
        if Part.OPTIMIZER in leaving:
            if self._stage in (0, 3):
                self._moved.offload(flat(held[Part.OPTIMIZER]))
            else:
                kinds += [OffloadStateTypeEnum.hp_params, OffloadStateTypeEnum.optim_states]
        if kinds:
            on_gpu = self._device.type == "cuda"
            self._engine.offload_states(include=kinds, pin_memory=on_gpu, non_blocking=on_gpu)
            self._moved_by_deepspeed = True
        _synchronize(self._device)
        self.offloaded |= leaving

    def load(self) -> None:
        """Brings everything back; gradients come back as zeros."""
        # First, since DeepSpeed makes views of some of them.
        self._gradients.refill()
        self._moved.load()
        self._frozen.load()
        self._views.load()
        if self._moved_by_deepspeed:
            self._engine.reload_states(non_blocking=self._device.type == "cuda")
            self._moved_by_deepspeed = False
        self.offloaded = frozenset()

    def frozen_tensors(self) -> list[Tensor]:
        """What holds the parameters that are not trained: whole ones, or this rank's shards."""
        frozen: list[Any] = [p for p in self._engine.module.parameters() if not p.requires_grad]
        return [p.ds_tensor for p in frozen] if self._stage == 3 else frozen

    def trained_views(self) -> list[Tensor]:
        """Under ZeRO 3, the buffer of the trained parameters' shards, and all views of it."""
        optimizer = self._engine.optimizer
        shards = [p.ds_tensor for p in self._engine.module.parameters() if p.requires_grad]
        return [optimizer.lp_param_buffer, *optimizer.fp16_partitioned_groups_flat, *shards]

    def forget_copies(self) -> None:
        """After parameters that are not trained were overwritten: the kept copies are of others."""
        self._frozen.forget()


class FrozenReference:
    """A model that is only read, so that its host copy is made once and then kept.

    Attributes:
        offloaded: Empty, or the one part that it is.
    """

    def __init__(self, model: nn.Module, *, device: torch.device) -> None:
        self.offloaded: frozenset[Part] = frozenset()
        self._parameters = list(model.parameters())
        self._copies = HostCopies(device, keep=True)

    def tensors(self) -> list[nn.Parameter]:
        return self._parameters

    def host_copies(self) -> list[Tensor]:
        return self._copies.hosts()

    def offload(self) -> None:
        self._copies.offload(self._parameters)
        self.offloaded = frozenset({Part.REFERENCE})

    def load(self) -> None:
        self._copies.load()
        self.offloaded = frozenset()


class HostCopies:
    """Moves tensors between the device and pinned memory, in place: who has one, sees it move.

    Args:
        keep: The tensors never change, and all leave together: their copies are made once.
    """

    def __init__(self, device: torch.device, *, keep: bool = False) -> None:
        self._device = device
        self._keep = keep
        self._copies: list[tuple[Tensor, Tensor]] = []

    def hosts(self) -> list[Tensor]:
        return [host for _, host in self._copies]

    def offload(self, tensors: Iterable[Tensor]) -> None:
        """Moves those that are on the device; counters of a single number stay."""
        if self._keep and self._copies:
            for tensor, host in self._copies:
                tensor.data = host
            return
        moved = []
        for tensor in tensors:
            if tensor.device.type == "cpu" or tensor.dim() == 0:
                continue
            host = torch.empty_like(tensor, device="cpu", pin_memory=True)
            host.copy_(tensor.detach(), non_blocking=True)
            moved.append((tensor, host))
        _synchronize(self._device)
        for tensor, host in moved:
            tensor.data = host
        self._copies += moved

    def forget(self) -> None:
        """Drops the copies of tensors that are on the device."""
        self.load()
        self._copies.clear()

    def load(self) -> None:
        """Moves all back."""
        for tensor, host in self._copies:
            if tensor.device.type == "cpu":
                tensor.data = host.to(self._device, non_blocking=True)
        _synchronize(self._device)
        if not self._keep:
            self._copies.clear()


class MovedViews:
    """Moves tensors that share storages between the device and pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._views: list[Tensor] = []

    def offload(self, tensors: Iterable[Tensor]) -> None:
        """Moves those that are on the device."""
        self._views = [each for each in tensors if each.device.type != "cpu"]
        move_together(self._views, _to_pinned)

    def load(self) -> None:
        """Moves all back."""
        move_together(self._views, lambda contents: contents.to(self._device))
        self._views = []


def move_together(tensors: Iterable[Tensor], move: Callable[[Tensor], Tensor]) -> None:
    """Moves tensors in place, of which those that shared a storage share one afterwards.

    Args:
        move: Copies the contents of a storage, uint8 (n,), into a new one.
    """
    # Each with the storage that it had: a new one could otherwise get the address of an old one.
    views = [(each, each.untyped_storage()) for each in tensors]
    storages = {storage.data_ptr(): storage for _, storage in views}
    moved = {address: move(_contents(storage)) for address, storage in storages.items()}
    for tensor, storage in views:
        contents = moved[storage.data_ptr()]
        tensor.data = torch.empty(0, dtype=tensor.dtype, device=contents.device).set_(
            contents.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride()
        )


def _contents(storage: torch.UntypedStorage) -> Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _to_pinned(contents: Tensor) -> Tensor:
    return torch.empty_like(contents, device="cpu", pin_memory=True).copy_(contents)


class EmptiedStorages:
    """Buffers whose contents nobody needs, made to take no memory while all views of them stay."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._emptied: list[tuple[torch.UntypedStorage, int]] = []

    def empty(self, tensors: Iterable[Tensor]) -> None:
        """Empties those that are on the device."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage.device.type == self._device.type and storage.nbytes():
                self._emptied.append((storage, storage.nbytes()))
                storage.resize_(0)

    def refill(self) -> None:
        """Gives each its memory back, zeroed: ZeRO 3 never writes the padding of its shards."""
        for storage, num_bytes in self._emptied:
            storage.resize_(num_bytes)
            _contents(storage).zero_()
        self._emptied.clear()


def flat(value: object) -> Iterator[Tensor]:
    """The tensors in nested lists and mappings, in order; None and other values are passed over."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        yield from flat(list(value.values()))
    elif isinstance(value, list | tuple):
        for item in value:
            yield from flat(item)


def release_caches() -> None:
    """Gives memory that allocators keep back to the device, and to the machine."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.accelerator.empty_host_cache()
    return_freed_memory()


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
