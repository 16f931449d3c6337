"""What the NVML probe tells while a driver plays a scene."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from nvml_support import GIB, NvmlProcess

from colocate.adapters.memory.errors import MemoryProbeError

OpenScene = Callable[..., NvmlProcess]


def gpu_values(probe: NvmlProcess) -> dict[str, float]:
    return {name: value for name, value in probe.telemetry().items() if name.startswith("gpu")}


def test_every_device_of_the_run_tells_of_itself(nvml_scene: OpenScene) -> None:
    probe = nvml_scene("two_gpus", num_devices=2)
    sample = probe.sample()
    assert sample.used == 30 * GIB
    assert sample.tenants == {"engine": 27 * GIB, "trainer": 2 * GIB}
    assert gpu_values(probe) == {
        "gpu0.used_bytes": 10 * GIB,
        "gpu0.free_bytes": 70 * GIB,
        "gpu0.utilization": 35,
        "gpu0.memory_utilization": 20,
        "gpu0.temperature_c": 41,
        "gpu0.power_w": 120.0,
        "gpu1.used_bytes": 30 * GIB,
        "gpu1.free_bytes": 50 * GIB,
        "gpu1.utilization": 97,
        "gpu1.memory_utilization": 60,
        "gpu1.temperature_c": 68,
        "gpu1.power_w": 640.5,
    }
    assert probe.telemetry()["host.available_bytes"] > 0
    assert probe.log == ""


def test_devices_are_counted_as_cuda_counts_the_visible_ones(nvml_scene: OpenScene) -> None:
    values = gpu_values(nvml_scene("two_gpus", num_devices=2, visible="1,0"))
    assert (values["gpu0.temperature_c"], values["gpu1.temperature_c"]) == (68, 41)
    alone = gpu_values(nvml_scene("two_gpus", visible="1"))
    assert alone["gpu0.temperature_c"] == 68
    assert not any(name.startswith("gpu1") for name in alone)


def test_a_mig_instance_has_its_own_memory_and_its_cards_temperature(
    nvml_scene: OpenScene,
) -> None:
    probe = nvml_scene("split_card", visible="MIG-dddd4444-0000")
    sample = probe.sample()
    assert (sample.used, sample.total) == (12 * GIB, 40 * GIB)
    assert sample.tenants == {"engine": 11 * GIB}
    for _ in range(2):
        assert gpu_values(probe) == {
            "gpu0.used_bytes": 12 * GIB,
            "gpu0.free_bytes": 28 * GIB,
            "gpu0.temperature_c": 55,
            "gpu0.power_w": 300.25,
        }
    assert probe.log.count("does not tell its utilization") == 1


def test_of_several_instances_the_fullest_is_sampled(nvml_scene: OpenScene) -> None:
    visible = "MIG-dddd5555-0000,MIG-dddd4444-0000"
    probe = nvml_scene("split_card", visible=visible, num_devices=2)
    assert probe.uuids == tuple(visible.split(","))
    assert probe.sample().used == 12 * GIB


def test_an_instance_whose_processes_are_not_told_has_no_tenants(
    nvml_scene: OpenScene, start_probe: Callable[..., NvmlProcess]
) -> None:
    with pytest.raises(MemoryProbeError, match="name one in CUDA_VISIBLE_DEVICES"):
        nvml_scene("split_card")
    probe = start_probe(
        "gpu GPU-cccc3333-0000 H100 40G 80G",
        "mig 0 MIG-dddd4444-0000 1 0 12G 40G",
        "fail nvmlDeviceGetComputeRunningProcesses_v3 3",
        tenants={"engine": [1]},
    ).open()
    assert probe.uuids == ("MIG-dddd4444-0000",)
    assert probe.sample().tenants == {}
    assert probe.sample().used == 12 * GIB


def test_memory_is_seen_to_fall_when_it_falls_and_not_before(nvml_scene: OpenScene) -> None:
    probe = nvml_scene("falls_two_seconds_late")
    seen = {}
    for at_s in (0.0, 10.0, 11.9, 12.0, 30.0):
        probe.advance_to(at_s)
        seen[at_s] = probe.sample().used // GIB
    assert seen == {0.0: 70, 10.0: 70, 11.9: 70, 12.0: 4, 30.0: 4}


def test_a_residual_that_rises_is_in_the_engines_share(nvml_scene: OpenScene) -> None:
    probe = nvml_scene("rising_residual")
    asleep = []
    for at_s in range(10, 120, 20):
        probe.advance_to(at_s)
        asleep.append(probe.sample().tenants["engine"] // GIB)
        probe.advance_to(at_s + 9)
        assert probe.sample().tenants["engine"] // GIB == asleep[-1]
    assert asleep == [2, 3, 4, 5, 6, 7]


def test_a_strangers_memory_is_used_but_nobodys_of_the_run(nvml_scene: OpenScene) -> None:
    probe = nvml_scene("shared_with_a_stranger")
    strangers = []
    for at_s in (0, 10, 20):
        probe.advance_to(at_s)
        sample = probe.sample()
        strangers.append((sample.used - sum(sample.tenants.values())) // GIB)
    assert strangers == [10, 60, 0]
    assert sample.free == 77 * GIB


def test_a_card_that_is_lost_in_the_middle_ends_sampling_but_not_telemetry(
    nvml_scene: OpenScene,
) -> None:
    probe = nvml_scene("lost_in_the_middle")
    assert probe.sample().used == 70 * GIB
    assert gpu_values(probe)["gpu0.power_w"] == 500
    with pytest.raises(MemoryProbeError, match="GPU is lost"):
        probe.sample()
    for _ in range(3):
        assert gpu_values(probe) == {}
        assert "host.available_bytes" in probe.telemetry()
    assert probe.log.count("WARNING") == 1


def test_what_a_driver_does_not_tell_is_absent_and_named_once(nvml_scene: OpenScene) -> None:
    probe = nvml_scene("tells_little")
    for _ in range(2):
        assert gpu_values(probe) == {
            "gpu0.used_bytes": 10 * GIB,
            "gpu0.free_bytes": 70 * GIB,
            "gpu0.temperature_c": 44,
        }
        assert probe.sample().tenants == {"trainer": 2 * GIB}
    assert probe.log.count("does not tell its utilization") == 1
    assert probe.log.count("does not tell its power") == 1
    assert probe.log.count("WARNING") == 2
