"""The one checksum of a tensor's bytes that trainer and engine compare.

Not cryptographic: it guards against a truncated, stale or misplaced copy between processes that
trust each other. It is made of integer sums, so that a GPU tensor is summed where it lies instead
of being copied to the host for ``zlib`` or ``hashlib``; on the host, numpy's sums read several
times as many bytes a second as either. Addition modulo 2^64 does not depend on its order, so every
device gives one value, and the ranks of a trainer may each sum the part that they have.
"""

from __future__ import annotations

import sys

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
    return checksum_text(*byte_sums(flat), num_bytes=flat.numel())


def checksum_text(plain: int, weighted: int, *, num_bytes: int) -> str:
    """The checksum of ``num_bytes`` bytes with these sums, each of which may be off by k * 2^64."""
    return f"{plain & _MASK:016x}:{weighted & _MASK:016x}:{num_bytes}"


def byte_sums(data: torch.Tensor, *, start: int = 0) -> tuple[int, int]:
    """What the bytes ``data`` (n,), uint8, add to the two sums of the tensor they are a part of.

    A word is the sum of its bytes, each times its power of 256, so both sums are sums over bytes:
    the parts of a tensor may be cut anywhere, and what they add is added up.

    Args:
        start: The place of the first of them in the whole tensor.
    """
    plain = weighted = 0
    first, lead = divmod(start, 8)
    if lead:
        word = _word(data[: 8 - lead], lead)
        plain, weighted = word, word * (first + 1)
        data, first = data[8 - lead :], first + 1
    if data.storage_offset() % 8 != 0:
        data = data.clone()
    whole = data.numel() - data.numel() % 8
    words = data[:whole].view(torch.int64)
    if data.device.type == "cpu":
        body, body_weighted = _host_sums(words.numpy().view(np.uint64))
    else:
        body, body_weighted = _device_sums(words)
    plain += body
    weighted += body_weighted + body * first
    if whole < data.numel():
        last = _word(data[whole:])
        plain += last
        weighted += last * (first + whole // 8 + 1)
    return plain, weighted


def _word(data: torch.Tensor, lead: int = 0) -> int:
    """Of up to 8 bytes that stand after ``lead`` zeros, and before more zeros."""
    padded = (bytes(lead) + data.cpu().numpy().tobytes()).ljust(8, b"\0")
    return int.from_bytes(padded, sys.byteorder)


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
