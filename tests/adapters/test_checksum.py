"""The checksum changes with any byte, any order, any length, and is one on every device."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from colocate.adapters import checksum
from colocate.adapters.checksum import byte_sums, checksum_text, tensor_checksum


def from_bytes(data: bytes) -> torch.Tensor:
    return torch.tensor(list(data), dtype=torch.uint8)


@given(data=st.binary(min_size=1, max_size=200), where=st.integers(0), flip=st.integers(1, 255))
def test_any_changed_byte_changes_it(data, where, flip):
    changed = bytearray(data)
    changed[where % len(data)] ^= flip
    assert tensor_checksum(from_bytes(data)) != tensor_checksum(from_bytes(bytes(changed)))


@given(data=st.binary(max_size=200))
def test_a_truncation_to_zeros_changes_it(data):
    assert tensor_checksum(from_bytes(data)) != tensor_checksum(from_bytes(data + b"\0"))


@given(data=st.binary(min_size=1, max_size=200), cuts=st.lists(st.integers(0, 200), max_size=4))
def test_parts_cut_anywhere_add_up_to_the_whole(data, cuts):
    ends = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    plain = weighted = 0
    for start, end in pairwise(ends):
        sums = byte_sums(from_bytes(data)[start:end], start=start)
        plain, weighted = plain + sums[0], weighted + sums[1]
    checksum = checksum_text(plain, weighted, num_bytes=len(data))
    assert checksum == tensor_checksum(from_bytes(data))


def test_exchanged_words_change_it():
    words = torch.arange(100)
    exchanged = words.clone()
    exchanged[3], exchanged[70] = words[70], words[3]
    assert tensor_checksum(words) != tensor_checksum(exchanged)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_it_is_of_the_bytes_not_of_shape_type_or_place(dtype):
    tensor = torch.arange(35).reshape(5, 7).to(dtype)
    expected = tensor_checksum(tensor)
    assert tensor_checksum(tensor.reshape(-1).view(torch.uint8)) == expected
    assert tensor_checksum(tensor.t().contiguous().t()) == expected
    shifted = torch.empty(36, dtype=dtype)[1:]
    shifted.copy_(tensor.reshape(-1))
    assert tensor_checksum(shifted) == expected


def test_blocks_and_devices_agree(monkeypatch):
    words = torch.randint(-(2**62), 2**62, (10_001,), generator=torch.Generator().manual_seed(0))
    expected = tensor_checksum(words)
    monkeypatch.setattr(checksum, "_HOST_BLOCK", 64)
    assert tensor_checksum(words) == expected
    monkeypatch.setattr(checksum, "_DEVICE_BLOCK", 128)
    monkeypatch.setattr(checksum, "_host_sums", lambda w: checksum._device_sums(words[: w.size]))
    assert tensor_checksum(words) == expected
