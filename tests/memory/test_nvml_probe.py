"""The NVML probe through NVIDIA's real binding, over a driver library that the test compiles."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

GIB = 2**30
FIRST, SECOND = "GPU-aaaa1111-0000", "GPU-aabb2222-0000"
TWO_ALIKE = [f"gpu {FIRST} H200 {10 * GIB} {80 * GIB}", f"gpu {SECOND} H200 {30 * GIB} {80 * GIB}"]

# Each line of standard input is one command; each answer is one line of JSON.
PROBE_PROCESS = """
import json, logging, os, sys
from colocate.adapters.memory.factory import make_probe
from colocate.adapters.memory.errors import MemoryProbeError
logging.basicConfig(stream=sys.stderr)
options = json.loads(sys.argv[1])
pids = {name: (lambda pids=pids: pids) for name, pids in options["tenants"].items()}
probe = None
for command in sys.stdin:
    try:
        if command.strip() == "open":
            probe = make_probe("cuda", pids, options["total_bytes"], environment=os.environ,
                               num_devices=options["num_devices"])
            answer = {"uuids": probe.uuids, "provider": probe.provider}
        elif command.strip() == "sample":
            sample = probe.sample()
            answer = {"used": sample.used, "total": sample.total, "free": sample.free,
                      "tenants": dict(sample.tenants)}
        else:
            probe.release()
            answer = {}
    except MemoryProbeError as error:
        answer = {"error": str(error)}
    print(json.dumps(answer), flush=True)
"""


class ProbeProcess:
    def __init__(self, process: subprocess.Popen[str], state: Path) -> None:
        self._process = process
        self._state = state

    @property
    def pid(self) -> int:
        return self._process.pid

    def set_driver(self, *lines: str) -> None:
        written = self._state.with_suffix(".new")
        written.write_text("\n".join(lines) + "\n")
        written.replace(self._state)

    def ask(self, command: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer


StartProbe = Callable[..., ProbeProcess]


@pytest.fixture(scope="session")
def driver_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("needs a C compiler")
    folder = tmp_path_factory.mktemp("driver")
    library = folder / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml_stub.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-o", str(library), str(source)], check=True
    )
    return folder


@pytest.fixture
def start_probe(driver_folder: Path, tmp_path: Path) -> Iterator[StartProbe]:
    started: list[subprocess.Popen[str]] = []

    def start(
        *driver: str,
        visible: str | None = None,
        order: str | None = None,
        total_bytes: int | None = None,
        num_devices: int | None = 1,
        tenants: dict[str, list[int]] | None = None,
        library: bool = True,
    ) -> ProbeProcess:
        environment = {
            name: value
            for name, value in os.environ.items()
            if name not in ("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "LD_LIBRARY_PATH")
        }
        state = tmp_path / "driver.state"
        environment["NVML_STUB_STATE"] = str(state)
        if library:
            environment["LD_LIBRARY_PATH"] = str(driver_folder)
        if visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        if order is not None:
            environment["CUDA_DEVICE_ORDER"] = order
        options = {
            "tenants": tenants or {},
            "total_bytes": total_bytes,
            "num_devices": num_devices,
        }
        process = subprocess.Popen(
            [sys.executable, "-c", PROBE_PROCESS, json.dumps(options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        started.append(process)
        probe = ProbeProcess(process, state)
        probe.set_driver(*driver)
        return probe

    yield start
    for process in started:
        process.communicate(timeout=30)


def test_a_device_is_read_as_the_driver_counts_it(start_probe: StartProbe) -> None:
    probe = start_probe(*TWO_ALIKE)
    assert probe.ask("open") == {"uuids": [FIRST], "provider": "nvml"}
    assert probe.ask("sample") == {
        "used": 10 * GIB,
        "total": 80 * GIB,
        "free": 70 * GIB,
        "tenants": {},
    }


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("1", [SECOND]),
        ("1,0", [SECOND]),
        (FIRST, [FIRST]),
        (SECOND, [SECOND]),
        ("GPU-aab", [SECOND]),
        (" GPU-aab , 0", [SECOND]),
        ("1,-1,0", [SECOND]),
    ],
)
def test_the_device_is_the_first_that_cuda_shows(
    start_probe: StartProbe, visible: str, expected: list[str]
) -> None:
    assert start_probe(*TWO_ALIKE, visible=visible).ask("open")["uuids"] == expected


def test_a_sample_is_of_the_fullest_of_several_devices(start_probe: StartProbe) -> None:
    probe = start_probe(*TWO_ALIKE, num_devices=2)
    assert probe.ask("open")["uuids"] == [FIRST, SECOND]
    assert probe.ask("sample")["used"] == 30 * GIB


@pytest.mark.parametrize(
    ("visible", "reason"),
    [
        ("", "0 of 2 are visible"),
        ("-1", "0 of 2 are visible"),
        ("2", "names GPU 2, but there are 2"),
        ("GPU-aa", "matches 2 GPUs"),
        ("GPU-cc", "matches no GPU"),
        ("0,0", "names a GPU twice"),
        (f"0,{FIRST}", "names a GPU twice"),
    ],
)
def test_a_selection_that_names_no_single_device_is_refused(
    start_probe: StartProbe, visible: str, reason: str
) -> None:
    assert reason in start_probe(*TWO_ALIKE, visible=visible).ask("open")["error"]


def test_an_index_is_refused_where_cuda_may_number_unlike_gpus_otherwise(
    start_probe: StartProbe,
) -> None:
    unlike = [f"gpu {FIRST} L4 1 2", f"gpu {SECOND} H200 1 2"]
    refusal = start_probe(*unlike, visible="0").ask("open")["error"]
    assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in refusal
    assert "error" in start_probe(*unlike).ask("open")
    assert start_probe(*unlike, visible="1", order="PCI_BUS_ID").ask("open")["uuids"] == [SECOND]
    assert start_probe(*unlike, visible=SECOND).ask("open")["uuids"] == [SECOND]


def test_a_budget_lowers_the_total_but_never_raises_it(start_probe: StartProbe) -> None:
    lower = start_probe(*TWO_ALIKE, total_bytes=24 * GIB)
    lower.ask("open")
    assert lower.ask("sample")["total"] == 24 * GIB
    higher = start_probe(*TWO_ALIKE, total_bytes=800 * GIB)
    higher.ask("open")
    assert higher.ask("sample")["total"] == 80 * GIB


def test_more_used_than_there_is_leaves_nothing_free(start_probe: StartProbe) -> None:
    probe = start_probe(f"gpu {FIRST} H200 {90 * GIB} {80 * GIB}")
    probe.ask("open")
    assert probe.ask("sample")["free"] == 0


def test_memory_is_told_by_tenant(start_probe: StartProbe) -> None:
    own, parent = os.getpid(), os.getppid()
    probe = start_probe(*TWO_ALIKE, tenants={"engine": [own], "stranger": [2**22 - 1]})
    probe.ask("open")
    probe.set_driver(
        *TWO_ALIKE,
        f"process 0 {own} {3 * GIB}",
        f"process 0 {probe.pid} {2 * GIB}",  # below this test in the tree: the engine's too
        f"process 0 {parent} {GIB}",
        f"process 1 {own} {7 * GIB}",
    )
    assert probe.ask("sample")["tenants"] == {"engine": 5 * GIB}


@pytest.mark.parametrize(
    "driver",
    [
        ["processes 3"],
        [],
        [f"process 0 {os.getpid()} -1"],
        [f"process 0 {os.getpid()} 5", f"process 0 {2**22 - 1} 5"],
    ],
    ids=["not_supported", "empty_list", "bytes_not_available", "other_pid_namespace"],
)
def test_what_the_driver_does_not_tell_of_a_tenant_is_absent_and_not_zero(
    start_probe: StartProbe, driver: list[str]
) -> None:
    probe = start_probe(*TWO_ALIKE, *driver, tenants={"engine": [os.getpid()]})
    probe.ask("open")
    sample = probe.ask("sample")
    assert sample["tenants"] == {}
    assert sample["used"] == 10 * GIB


def test_a_driver_that_dies_is_an_error_and_not_a_number(start_probe: StartProbe) -> None:
    probe = start_probe(*TWO_ALIKE)
    probe.ask("open")
    probe.set_driver("status 15", *TWO_ALIKE)
    error = probe.ask("sample")["error"]
    assert FIRST in error
    assert "resume from the last checkpoint" in error


def test_a_released_probe_takes_no_sample(start_probe: StartProbe) -> None:
    probe = start_probe(*TWO_ALIKE)
    probe.ask("open")
    assert probe.ask("release") == {}
    assert probe.ask("release") == {}
    assert "released" in probe.ask("sample")["error"]


@pytest.mark.skipif(
    any(
        Path(folder, "libnvidia-ml.so.1").exists()
        for folder in ("/usr/lib/x86_64-linux-gnu", "/usr/lib64")
    ),
    reason="this machine has a real driver",
)
def test_a_missing_library_is_explained(start_probe: StartProbe) -> None:
    error = start_probe(*TWO_ALIKE, library=False).ask("open")["error"]
    assert "colocate doctor" in error
    assert "device=cpu" in error


def test_a_driver_that_will_not_start_is_explained(start_probe: StartProbe) -> None:
    assert "colocate doctor" in start_probe("status 9", *TWO_ALIKE).ask("open")["error"]
