"""The NVML probe through NVIDIA's real binding, over a driver library that the tests compile."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from nvml_support import GIB, NvmlProcess

from colocate.adapters.memory.errors import MemoryProbeError
from colocate.ports import MemoryProbe

FIRST, SECOND = "GPU-aaaa1111-0000", "GPU-aabb2222-0000"
TWO_ALIKE = [f"gpu {FIRST} H200 10G 80G", f"gpu {SECOND} H200 30G 80G"]

StartProbe = Callable[..., NvmlProcess]


def test_a_device_is_read_as_the_driver_counts_it(start_probe: StartProbe) -> None:
    probe: MemoryProbe = start_probe(*TWO_ALIKE).open()
    sample = probe.sample()
    assert (sample.used, sample.total, sample.free) == (10 * GIB, 80 * GIB, 70 * GIB)
    assert sample.tenants == {}


@pytest.mark.parametrize(
    ("visible", "expected"),
    [("1", SECOND), ("1,0", SECOND), (FIRST, FIRST), ("GPU-aab", SECOND), ("1,-1,0", SECOND)],
)
def test_the_device_is_the_first_that_cuda_shows(
    start_probe: StartProbe, visible: str, expected: str
) -> None:
    assert start_probe(*TWO_ALIKE, visible=visible).open().uuids == (expected,)


def test_a_sample_is_of_the_fullest_of_several_devices(start_probe: StartProbe) -> None:
    probe = start_probe(*TWO_ALIKE, num_devices=2).open()
    assert probe.uuids == (FIRST, SECOND)
    assert probe.sample().used == 30 * GIB
    probe.play(f"gpu {FIRST} H200 50G 80G", f"gpu {SECOND} H200 30G 80G")
    assert probe.sample().used == 50 * GIB


@pytest.mark.parametrize("visible", ["", "2", "GPU-aa", "0,0"])
def test_a_selection_that_names_no_single_device_opens_no_probe(
    start_probe: StartProbe, visible: str
) -> None:
    with pytest.raises(MemoryProbeError, match="CUDA_VISIBLE_DEVICES"):
        start_probe(*TWO_ALIKE, visible=visible).open()


def test_a_budget_lowers_the_total_but_never_raises_it(start_probe: StartProbe) -> None:
    lower = start_probe(*TWO_ALIKE, total_bytes=24 * GIB).open()
    assert lower.sample().total == 24 * GIB
    higher = start_probe(*TWO_ALIKE, total_bytes=800 * GIB).open()
    assert higher.sample().total == 80 * GIB


def test_more_used_than_there_is_leaves_nothing_free(start_probe: StartProbe) -> None:
    probe = start_probe(f"gpu {FIRST} H200 90G 80G").open()
    for _ in range(2):
        assert probe.sample().free == 0
    assert probe.telemetry()["gpu0.free_bytes"] == 0
    assert probe.log.count("none is counted free") == 1


def test_memory_is_told_by_tenant(start_probe: StartProbe) -> None:
    own, parent = os.getpid(), os.getppid()
    probe = start_probe(*TWO_ALIKE, tenants={"engine": [own], "stranger": [2**22 - 1]}).open()
    probe.play(
        *TWO_ALIKE,
        f"process 0 {own} 3G",
        f"process 0 {probe.pid} 2G",  # below this test in the tree: the engine's too
        f"process 0 {parent} 1G",
        f"process 1 {own} 7G",
    )
    assert probe.sample().tenants == {"engine": 5 * GIB}


@pytest.mark.parametrize(
    "driver",
    [
        ["fail nvmlDeviceGetComputeRunningProcesses_v3 3"],
        ["fail nvmlDeviceGetComputeRunningProcesses_v3 4"],
        [],
        [f"process 0 {os.getpid()} -1"],
        [f"process 0 {os.getpid()} 5", f"process 0 {2**22 - 1} 5"],
    ],
    ids=[
        "not_supported",
        "no_permission",
        "empty_list",
        "bytes_not_available",
        "other_pid_namespace",
    ],
)
def test_what_the_driver_does_not_tell_of_a_tenant_is_absent_and_not_zero(
    start_probe: StartProbe, driver: list[str]
) -> None:
    probe = start_probe(*TWO_ALIKE, *driver, tenants={"engine": [os.getpid()]}).open()
    for _ in range(2):
        sample = probe.sample()
        assert sample.tenants == {}
        assert sample.used == 10 * GIB
    assert probe.log.count("WARNING") <= 1


def test_the_run_may_hold_no_more_of_the_host_than_its_budget(start_probe: StartProbe) -> None:
    tenants = {"engine": [os.getpid()]}
    # This process and all below it, among them engines that other tests share.
    held = start_probe(*TWO_ALIKE, tenants=tenants).open().sample().host_used
    assert held is not None
    budget = held + GIB
    sample = start_probe(*TWO_ALIKE, tenants=tenants, host_budget_bytes=budget).open().sample()
    assert sample.host_used is not None
    assert sample.host_free == budget - sample.host_used > 0
    small = start_probe(*TWO_ALIKE, tenants={"engine": [os.getpid()]}, host_budget_bytes=1).open()
    assert small.sample().host_free == 0


@pytest.mark.parametrize(
    ("status", "advice"),
    [(15, "Xid"), (18, "reboot"), (9, "modprobe"), (999, "container"), (10, "dmesg")],
    ids=["lost", "upgraded", "unloaded", "unknown", "timeout"],
)
def test_a_driver_that_dies_is_an_error_with_a_remedy_and_not_a_number(
    start_probe: StartProbe, status: int, advice: str
) -> None:
    probe = start_probe(*TWO_ALIKE).open()
    probe.play(*TWO_ALIKE, f"status {status}")
    with pytest.raises(MemoryProbeError, match=advice) as caught:
        probe.sample()
    assert FIRST in str(caught.value)
    assert "resume from the last checkpoint" in str(caught.value)


def test_a_gpu_without_memory_of_its_own_is_refused_as_such(start_probe: StartProbe) -> None:
    probe = start_probe(*TWO_ALIKE, "fail nvmlDeviceGetMemoryInfo 3").open()
    with pytest.raises(MemoryProbeError, match="share the machine's RAM"):
        probe.sample()


def test_a_released_probe_takes_no_sample(start_probe: StartProbe) -> None:
    probe = start_probe(*TWO_ALIKE).open()
    probe.release()
    probe.release()
    with pytest.raises(MemoryProbeError, match="released"):
        probe.sample()
    assert not any(name.startswith("gpu") for name in probe.telemetry())


@pytest.mark.skipif(
    any(
        Path(folder, "libnvidia-ml.so.1").exists()
        for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")
    ),
    reason="this machine has a real driver",
)
def test_a_missing_library_is_explained(start_probe: StartProbe) -> None:
    with pytest.raises(MemoryProbeError, match=r"colocate doctor.*device=cpu"):
        start_probe(*TWO_ALIKE, library=False).open()


def test_a_driver_that_will_not_start_is_explained(start_probe: StartProbe) -> None:
    with pytest.raises(MemoryProbeError, match="colocate doctor"):
        start_probe("status 9", *TWO_ALIKE).open()


def test_a_driver_that_knows_nothing_of_mig_has_whole_gpus(start_probe: StartProbe) -> None:
    old = start_probe(*TWO_ALIKE, "fail nvmlDeviceGetMigMode 13").open()
    assert old.uuids == (FIRST,)
    with pytest.raises(MemoryProbeError, match="cannot list"):
        start_probe(*TWO_ALIKE, "fail nvmlDeviceGetMigMode 15").open()
