"""The choice of GPUs by CUDA_VISIBLE_DEVICES."""

from __future__ import annotations

from dataclasses import replace

import pytest

from colocate.adapters.memory.errors import MemoryProbeError
from colocate.adapters.memory.visible_devices import Device, select_devices

FIRST = Device(uuid="GPU-aaaa1111-0000", name="H200")
SECOND = Device(uuid="GPU-aabb2222-0000", name="H200")
SPLIT = Device(uuid="GPU-cccc3333-0000", name="H200", split=True)
SLICE = Device(
    uuid="MIG-dddd4444-0000",
    name="MIG",
    parent=SPLIT.uuid,
    old_name="MIG-GPU-cccc3333-0000/1/0",
)
SLICES = [SLICE, replace(SLICE, uuid="MIG-dddd5555-0000", old_name="MIG-GPU-cccc3333-0000/2/0")]
WHOLE = [FIRST, SECOND]
MIXED = [FIRST, SPLIT, *SLICES, SECOND]


def select(
    devices: list[Device],
    visible: str | None,
    *,
    order: str | None = None,
    num_devices: int | None = None,
) -> list[str]:
    chosen = select_devices(
        devices, visible_devices=visible, device_order=order, num_devices=num_devices
    )
    return list(chosen)


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        (None, [FIRST, SECOND]),
        ("1", [SECOND]),
        ("1,0", [SECOND, FIRST]),
        (" 1 , 0 ", [SECOND, FIRST]),
        ("1,-1,0", [SECOND]),
        ("1,,0", [SECOND]),
        ("GPU-aabb2222-0000", [SECOND]),
        ("GPU-aab,GPU-aaa", [SECOND, FIRST]),
        ("GPU-aab,0", [SECOND]),
        ("0,GPU-aab", [FIRST]),
        ("GPU-aab, GPU-aaa", [SECOND]),
        ("GPU-aab,MIG-dddd", [SECOND]),
    ],
)
def test_the_list_is_read_as_cuda_reads_it(visible: str | None, expected: list[Device]) -> None:
    assert select(WHOLE, visible) == [device.uuid for device in expected]


@pytest.mark.parametrize(
    ("visible", "reason"),
    [
        ("", "0 of 2 are visible"),
        ("-1", "0 of 2 are visible"),
        (" GPU-aab", "0 of 2 are visible"),
        ("2", "names GPU 2, but there are 2"),
        ("GPU-aa", "matches 2 GPUs"),
        ("GPU-cc", "matches no GPU"),
        ("GPU-aab ", "matches no GPU"),
        ("NoDevFiles", "matches no GPU"),
        ("GPU", "matches no GPU"),
        ("0,0", "names a GPU twice"),
        ("GPU-aaa,GPU-aaaa", "names a GPU twice"),
    ],
)
def test_a_list_that_names_no_single_device_is_refused(visible: str, reason: str) -> None:
    with pytest.raises(MemoryProbeError, match=reason):
        select(WHOLE, visible)


def test_fewer_than_the_run_uses_are_refused() -> None:
    with pytest.raises(MemoryProbeError, match=r"uses 2 GPU.*1 of 2"):
        select(WHOLE, "1,-1,0", num_devices=2)
    assert select(WHOLE, "1,0", num_devices=1) == [SECOND.uuid]


def test_an_index_is_refused_where_cuda_may_number_unlike_gpus_otherwise() -> None:
    unlike = [replace(FIRST, name="L4"), SECOND]
    with pytest.raises(MemoryProbeError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        select(unlike, "0")
    with pytest.raises(MemoryProbeError, match="CUDA_DEVICE_ORDER=PCI_BUS_ID"):
        select(unlike, None, num_devices=1)
    assert select(unlike, None) == [FIRST.uuid, SECOND.uuid]
    assert select(unlike, "1", order="PCI_BUS_ID") == [SECOND.uuid]
    assert select(unlike, SECOND.uuid) == [SECOND.uuid]


def test_slices_are_no_unlike_gpus() -> None:
    assert select(MIXED, "2") == [SECOND.uuid]


@pytest.mark.parametrize("visible", ["MIG-dddd4444-0000", "MIG-dddd4", "MIG-GPU-cccc3333-0000/1/0"])
def test_a_mig_instance_is_named_by_uuid_its_beginning_or_its_old_name(visible: str) -> None:
    assert select(MIXED, visible) == [SLICE.uuid]


@pytest.mark.parametrize(
    ("visible", "reason"),
    [
        ("MIG-dddd", "matches 2 GPUs"),
        ("MIG-GPU-cccc3333-0000", "matches no GPU"),
        ("MIG-dddd4,MIG-GPU-cccc3333-0000/1/0", "names a GPU twice"),
    ],
)
def test_a_name_that_is_not_of_one_instance_is_refused(visible: str, reason: str) -> None:
    with pytest.raises(MemoryProbeError, match=reason):
        select(MIXED, visible)


@pytest.mark.parametrize("visible", ["1", SPLIT.uuid, None])
def test_a_split_gpu_stands_for_its_only_instance_and_for_none_of_several(
    visible: str | None,
) -> None:
    assert SLICE.uuid in select([FIRST, SPLIT, SLICE], visible)
    with pytest.raises(MemoryProbeError, match="MIG-dddd4444-0000, MIG-dddd5555-0000"):
        select(MIXED, visible)
    with pytest.raises(MemoryProbeError, match="no instance"):
        select([FIRST, SPLIT], visible)


def test_a_split_gpu_that_the_run_does_not_use_is_no_obstacle() -> None:
    assert select(MIXED, None, num_devices=1) == [FIRST.uuid]
