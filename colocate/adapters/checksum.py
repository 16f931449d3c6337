"""The one checksum of a tensor's bytes that trainer and engine compare.

Not cryptographic: it guards against a truncated, stale or misplaced copy between processes that
trust each other. It is made of integer sums, so that a GPU tensor is summed where it lies instead
of being copied to the host for ``zlib`` or ``hashlib``; on the host, numpy's sums read several
times as many bytes a second as either. Addition modulo 2^64 does not depend on its order, so every
device gives one value.
"""

from __future__ import annotations

import numpy as np
import torch

_HOST_BLOCK = 1 << 17
"""64-bit words summed at a time on the host: one MiB, which stays in a core's cache."""

_DEVICE_BLOCK = 1 << 24
"""The same on a GPU, where each block costs three kernel launches and 128 MiB of scratch."""

_MASK = (1 << 64) - 1


def tensor_checksum(tensor: torch.Tensor) -> str:
    """Two sums over the tensor's bytes and their number, as hexadecimal and decimal text.

    With the bytes read as 64-bit words ``w_0 .. w_{n-1}`` in the machine's order, the last one
    padded with zeros, the sums are ``sum w_i`` and ``sum (i + 1) w_i`` modulo 2^64, as in
    Fletcher, "An Arithmetic Checksum for Serial Transmissions" (1982). The first changes with
    any single word, the second with an exchange of words, the number with a truncation.

    Args:
        tensor: Any dtype, shape and device. Contiguous tensors that begin on a multiple of 8
            bytes of their storage are read in place; others are copied first.

    Example: ``"e158c9537b429195:42b66b33fb2670f1:4096"``.
    """
    flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    if flat.storage_offset() % 8 != 0:
        flat = flat.clone()
    num_bytes = flat.numel()
    num_whole = num_bytes - num_bytes % 8
    words = flat[:num_whole].view(torch.int64)
    if flat.device.type == "cpu":
        plain, weighted = _host_sums(words.numpy().view(np.uint64))
    else:
        plain, weighted = _device_sums(words)
    if num_whole < num_bytes:
        tail = np.zeros(8, dtype=np.uint8)
        tail[: num_bytes - num_whole] = flat[num_whole:].cpu().numpy()
        last = int(tail.view(np.uint64)[0])
        plain += last
        weighted += last * (num_whole // 8 + 1)
    return f"{plain & _MASK:016x}:{weighted & _MASK:016x}:{num_bytes}"


def _host_sums(words: np.ndarray[tuple[int, ...], np.dtype[np.uint64]]) -> tuple[int, int]:
    plain = weighted = 0
    weights = np.arange(1, min(words.size, _HOST_BLOCK) + 1, dtype=np.uint64)
    for start in range(0, words.size, _HOST_BLOCK):
        block = words[start : start + _HOST_BLOCK]
        total = int(block.sum())
        plain += total
        weighted += int(np.dot(block, weights[: block.size])) + total * start
    return plain, weighted


def _device_sums(words: torch.Tensor) -> tuple[int, int]:
    """The same sums of int64 ``words`` on their own device, read back once at the end."""
    sums = torch.zeros(2, dtype=torch.int64, device=words.device)
    length = min(words.numel(), _DEVICE_BLOCK)
    weights = torch.arange(1, length + 1, dtype=torch.int64, device=words.device)
    for start in range(0, words.numel(), _DEVICE_BLOCK):
        block = words[start : start + _DEVICE_BLOCK]
        total = block.sum()
        sums[0] += total
        sums[1] += (block * weights[: block.numel()]).sum() + total * start
    plain, weighted = sums.tolist()
    return plain, weighted
