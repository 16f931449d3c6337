"""Full weights from ZeRO shards, packed into buckets that engine workers map.

Adapters are merged on the way, by each rank into what it writes: engines know nothing of them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from colocate.adapters.checksum import byte_sums, checksum_text
from colocate.adapters.deepspeed.buffers import Buffers
from colocate.adapters.deepspeed.engine import TrainingEngine
from colocate.adapters.deepspeed.wire import Entry, Packed
from colocate.learn.lora import Weight, merged_pieces

ALIGNMENT_BYTES = 64
"""Of each tensor in a bucket, so that any type can be viewed in place."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a weight lies in its bucket, and as what."""

    name: str
    weight: Weight[nn.Parameter]
    dtype: torch.dtype
    shape: tuple[int, ...]
    offset: int

    @property
    def num_bytes(self) -> int:
        return _numel(self.weight) * self.dtype.itemsize


class Exporter:
    """Packs one bucket at a time, into one slot of the buffers after another.

    Args:
        dtype: What floating-point weights are cast to: the type that the engine computes in.
        bucket_bytes: A larger bucket holds a single weight.
    """

    def __init__(
        self,
        engine: TrainingEngine,
        buffers: Buffers,
        *,
        dtype: torch.dtype,
        bucket_bytes: int,
        rank: int,
        num_ranks: int,
    ) -> None:
        self._engine = engine
        self._buffers = buffers
        self._rank = rank
        self._num_ranks = num_ranks
        weights = {
            name: (weight, dtype if weight.base.is_floating_point() else weight.base.dtype)
            for name, weight in engine.weights().items()
        }
        self.names = list(weights)
        sizes = [(n, _numel(weight) * kind.itemsize) for n, (weight, kind) in weights.items()]
        self._buckets = [
            _places([(name, *weights[name]) for name in names])
            for names in plan_buckets(sizes, bucket_bytes)
        ]
        # Of its largest bucket: a slot that grows has to be mapped again, page after page.
        ends = [places[-1].offset + places[-1].num_bytes for places in self._buckets]
        self._slot_bytes = [
            max(ends[slot :: self.num_slots], default=0) for slot in range(self.num_slots)
        ]
        self._seconds: dict[str, float] = {}

    @property
    def num_slots(self) -> int:
        return self._buffers.num_slots

    @property
    def num_buckets(self) -> int:
        return len(self._buckets)

    def pack(self, index: int, *, checksums: bool) -> Packed:
        """Packs bucket ``index``; the one in the same slot is lost. All ranks call it together.

        Args:
            checksums: Otherwise entries have an empty one, which no engine loads.
        """
        self._seconds = {}
        places = self._buckets[index]
        slot = index % self._buffers.num_slots
        with self._timed("copy"):
            buffer = self._buffers.open(slot, self._slot_bytes[slot])
        sums = np.zeros((len(places), 2), dtype=np.uint64)
        for row, place in enumerate(places):
            with self._timed("gather"):
                start, values = self._held(place.weight.base)
                factors = self._factors(place.weight)
            first = start * place.dtype.itemsize
            last = first + values.numel() * place.dtype.itemsize
            target = buffer[place.offset + first : place.offset + last]
            with self._timed("copy"):
                if factors is None:
                    _copy(target, values, place.dtype)
                else:
                    self._merge(target.view(place.dtype), values, factors, start)
            if checksums:
                with self._timed("checksum"):
                    sums[row] = [s % 2**64 for s in byte_sums(target, start=first)]
        if checksums and self._buffers.common and self._num_ranks > 1:
            with self._timed("checksum"):
                torch.distributed.all_reduce(torch.from_numpy(sums.view(np.int64)))
        handle = self._buffers.handle(slot)
        return Packed(
            handle=handle,
            entries=[]
            if handle is None
            else [
                _entry(place, *map(int, pair), checked=checksums)
                for place, pair in zip(places, sums, strict=True)
            ],
            seconds=self._seconds,
        )

    def rest(self) -> None:
        """Between publications: no bucket can be read any more."""
        self._buffers.rest()

    def release(self) -> None:
        """Lets go of all buckets."""
        self._buffers.release()

    def _held(self, parameter: nn.Parameter) -> tuple[int, Tensor]:
        """What this rank writes of a parameter: the first element's place, and the elements."""
        if not self._buffers.common:
            return 0, self._engine.full_parameter(parameter).reshape(-1)
        sharded: Any = parameter
        if hasattr(parameter, "ds_tensor"):
            shard = sharded.ds_tensor.detach().reshape(-1)
            start = min(self._rank * shard.numel(), sharded.ds_numel)
            return start, shard[: sharded.ds_numel - start]
        flat = parameter.detach().reshape(-1)
        start = flat.numel() * self._rank // self._num_ranks
        return start, flat[start : flat.numel() * (self._rank + 1) // self._num_ranks]

    def _factors(self, weight: Weight[nn.Parameter]) -> tuple[Tensor, Tensor] | None:
        """Of a weight's adapter, whole. They are small, and a run of elements may need any row."""
        if weight.factors is None:
            return None
        down, up = weight.factors
        return self._engine.full_parameter(down), self._engine.full_parameter(up)

    def _merge(
        self, target: Tensor, values: Tensor, factors: tuple[Tensor, Tensor], start: int
    ) -> None:
        """Writes ``values``, a weight's from ``start`` on, with its adapter: cast once."""
        scale = self._engine.adapter_scale
        for place, piece in merged_pieces(values, factors, scale=scale, start=start):
            target[place : place + len(piece)].copy_(piece)

    @contextmanager
    def _timed(self, part: str) -> Iterator[None]:
        """Adds the time within to ``part``, that of GPU kernels included."""
        began = time.perf_counter()
        yield
        if not self._buffers.common:
            torch.cuda.synchronize()
        self._seconds[part] = self._seconds.get(part, 0.0) + time.perf_counter() - began


def plan_buckets(sizes: Sequence[tuple[str, int]], bucket_bytes: int) -> list[list[str]]:
    """Names in order, cut so that no bucket exceeds ``bucket_bytes`` unless by a single tensor."""
    buckets: list[list[str]] = []
    room = 0
    for name, num_bytes in sizes:
        aligned = _aligned(num_bytes)
        if not buckets or aligned > room:
            buckets.append([])
            room = bucket_bytes
        buckets[-1].append(name)
        room -= aligned
    return buckets


def _places(weights: Sequence[tuple[str, Weight[nn.Parameter], torch.dtype]]) -> list[Place]:
    places = []
    end = 0
    for name, weight, dtype in weights:
        shape = tuple(getattr(weight.base, "ds_shape", weight.base.shape))
        place = Place(name=name, weight=weight, dtype=dtype, shape=shape, offset=end)
        places.append(place)
        end += _aligned(place.num_bytes)
    return places


def _aligned(num_bytes: int) -> int:
    return -(-num_bytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def _numel(weight: Weight[nn.Parameter]) -> int:
    return int(getattr(weight.base, "ds_numel", weight.base.numel()))


def _copy(target: Tensor, values: Tensor, dtype: torch.dtype) -> None:
    if target.device.type == "cpu" and values.dtype == dtype:
        # The C library's copy, which for long runs is faster than torch's loops.
        np.copyto(target.numpy(), values.contiguous().view(torch.uint8).numpy())
    else:
        target.view(dtype).copy_(values)


def _entry(place: Place, plain: int, weighted: int, *, checked: bool) -> Entry:
    return Entry(
        name=place.name,
        dtype=str(place.dtype).removeprefix("torch."),
        shape=list(place.shape),
        offset=place.offset,
        num_bytes=place.num_bytes,
        checksum=checksum_text(plain, weighted, num_bytes=place.num_bytes) if checked else "",
    )
