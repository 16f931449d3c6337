"""Transport alone (shard to shared buffer to engine), and plain copies of the same bytes.

The machine is shared and its speed changes from minute to minute, so each round measures all of
them one after another, and only what was measured in one round is compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass

import torch

from colocate.adapters.deepspeed.client import DeepSpeedTrainer
from colocate.adapters.weights import StreamedTransfer
from colocate.machine import Device

MIN_COPY_S = 0.02
"""Small models are copied so often that a clock's tick and a thread's start do not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Bytes a second of each, measured in turn.

    Attributes:
        copies: By the number of torch's threads.
        two_copies: Likewise, of a copy and a copy of that.
        seconds: Of transport, by part; parts overlap.
    """

    transport: float
    copies: Mapping[int, float]
    two_copies: Mapping[int, float]
    seconds: Mapping[str, float]

    def share(self, num_threads: int) -> float:
        """Transport as a share of the plain copy with so many threads.

        Transport copies with one thread on either side, at the same time: one thread is the same
        number for one copy, and all CPUs are what two processes can use.
        """
        return self.transport / self.copies[num_threads]

    def share_of_two(self, num_threads: int) -> float:
        return self.transport / self.two_copies[num_threads]


class PlainCopies:
    """``torch.Tensor.copy_`` between tensors of given sizes, in this process.

    Sources and targets are allocated once and written to, so that no copy waits for the kernel to
    find pages: nothing that moves these bytes can be faster, and transport pays for more.

    Args:
        sizes: In bytes, of each tensor.
        device: Where both sides lie. On GPUs this process makes a context there.
    """

    def __init__(self, sizes: Sequence[int], device: Device) -> None:
        self._device = device
        self._source, self._middle, self._target = (
            [torch.full((size,), value, dtype=torch.uint8, device=device) for size in sizes]
            for value in (1, 2, 3)
        )
        self._num_bytes = sum(sizes)

    def once(self, num_threads: int) -> float:
        """Bytes a second of one copy."""
        return self._rate(num_threads, [(self._source, self._target)])

    def twice(self, num_threads: int) -> float:
        """Bytes a second of a copy and a copy of that."""
        return self._rate(num_threads, [(self._source, self._middle), (self._middle, self._target)])

    def _rate(
        self,
        num_threads: int,
        hops: Sequence[tuple[Sequence[torch.Tensor], Sequence[torch.Tensor]]],
    ) -> float:
        before = torch.get_num_threads()
        torch.set_num_threads(num_threads)
        try:
            count = 0
            began = time.perf_counter()
            while (taken := time.perf_counter() - began) < MIN_COPY_S:
                for sources, targets in hops:
                    for source, target in zip(sources, targets, strict=True):
                        target.copy_(source)
                if self._device == "cuda":
                    torch.cuda.synchronize()
                count += 1
        finally:
            torch.set_num_threads(before)
        return self._num_bytes * count / taken


async def measure_transport(
    trainer: DeepSpeedTrainer, transfer: StreamedTransfer, *, device: Device, rounds: int
) -> list[Round]:
    """The swap must stand where it would publish: weights awake, the trainer's parameters there.

    Plain copies are made with one thread, and with as many as this process may use CPUs.
    """
    sizes = []
    async with aclosing(trainer.export_buckets(checksums=False)) as buckets:
        async for bucket in buckets:
            sizes += [entry.num_bytes for entry in bucket.entries]
    copies = PlainCopies(sizes, device)
    counts = sorted({1, len(os.sched_getaffinity(0))})
    measured = []
    copies.once(counts[-1])  # starts torch's threads
    for _ in range(rounds):
        before = {threads: copies.once(threads) for threads in counts}
        rehearsal = await transfer.rehearse()
        after = {threads: copies.once(threads) for threads in counts}
        measured.append(
            Round(
                transport=rehearsal.num_bytes / rehearsal.wall_s,
                copies={threads: (before[threads] + after[threads]) / 2 for threads in counts},
                two_copies={threads: copies.twice(threads) for threads in counts},
                seconds=rehearsal.seconds,
            )
        )
    return measured
