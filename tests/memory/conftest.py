"""Processes that hold memory, and a driver library that plays scripted scenes."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from holder_support import Holder
from nvml_support import NvmlProcess, plain_environment, read_scene


@pytest.fixture
def holder() -> Iterator[Callable[..., Holder]]:
    started: list[Holder] = []

    def start(num_mib: int, below: int | None = None, *, shared: bool = False) -> Holder:
        started.append(Holder(num_mib, below, shared=shared))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.end()


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
def start_probe(
    driver_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., NvmlProcess]]:
    """A process with a probe that is not yet opened, over the scene's lines."""
    started: list[NvmlProcess] = []

    def start(
        *scene: str,
        visible: str | None = None,
        order: str | None = None,
        total_bytes: int | None = None,
        host_budget_bytes: int | None = None,
        num_devices: int | None = 1,
        tenants: dict[str, list[int]] | None = None,
        library: bool = True,
    ) -> NvmlProcess:
        environment = plain_environment()
        if library:
            environment["LD_LIBRARY_PATH"] = str(driver_folder)
        if visible is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible
        if order is not None:
            environment["CUDA_DEVICE_ORDER"] = order
        probe = NvmlProcess(
            tmp_path_factory.mktemp("probe"),
            environment,
            {
                "tenants": tenants or {},
                "total_bytes": total_bytes,
                "host_budget_bytes": host_budget_bytes,
                "num_devices": num_devices,
            },
        )
        started.append(probe)
        probe.play(*scene)
        return probe

    yield start
    for probe in started:
        probe.end()


@pytest.fixture
def scene_processes() -> Iterator[dict[str, int]]:
    """Live processes by the names that scenes give them; none is below another."""
    processes = {
        name: subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        for name in ("engine", "trainer", "stranger")
    }
    yield {name: process.pid for name, process in processes.items()}
    for process in processes.values():
        process.communicate(timeout=300)


@pytest.fixture
def nvml_scene(
    start_probe: Callable[..., NvmlProcess], scene_processes: dict[str, int]
) -> Callable[..., NvmlProcess]:
    """``nvml_scene("NAME")``: an open NVML probe whose driver plays ``scenes/NAME.scene``.

    The engine's and the trainer's processes are the scene's; keywords are ``start_probe``'s.
    ``probe.advance_to(seconds)`` moves the scene's clock.
    """

    def open_scene(name: str, **options: object) -> NvmlProcess:
        tenants = {tenant: [scene_processes[tenant]] for tenant in ("engine", "trainer")}
        options = {"tenants": tenants, **options}
        return start_probe(*read_scene(name, scene_processes), **options).open()

    return open_scene
