"""The RAM probe on real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from colocate.adapters.memory.factory import make_probe
from colocate.adapters.memory.processes import resident_bytes, with_descendants
from colocate.adapters.memory.psutil_probe import PsutilProbe, usable_ram_bytes

MIB = 2**20

# Holds argv[1] MiB of its own; with argv[2], a child holds that many more. Says when it does.
HOLDER = """
import subprocess, sys
held = bytearray(b"x") * (int(sys.argv[1]) * 2**20)
if len(sys.argv) > 2:
    child = subprocess.Popen([sys.executable, "-c", sys.argv[3], sys.argv[2]],
                             stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    child.stdout.readline()
print("holding", flush=True)
for line in sys.stdin:
    held = None
    print("dropped", flush=True)
"""


class Holder:
    def __init__(self, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._await()

    @property
    def pid(self) -> int:
        return self.process.pid

    def drop(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("drop\n")
        self.process.stdin.flush()
        self._await()

    def end(self) -> None:
        self.process.communicate(timeout=30)

    def _await(self) -> None:
        assert self.process.stdout is not None
        self.process.stdout.readline()


@pytest.fixture
def holder() -> Iterator[Callable[..., Holder]]:
    started: list[Holder] = []

    def start(num_mib: int, num_mib_below: int | None = None) -> Holder:
        below = [] if num_mib_below is None else [str(num_mib_below), HOLDER]
        started.append(Holder(str(num_mib), *below))
        return started[-1]

    yield start
    for one in started:
        if one.process.poll() is None:
            one.end()


def test_a_tenant_is_charged_what_its_processes_hold(holder: Callable[..., Holder]) -> None:
    big, small = holder(200), holder(0)
    probe = PsutilProbe({"engine": lambda: [big.pid], "trainer": lambda: [small.pid]}, 4096 * MIB)
    sample = probe.sample()
    assert 200 * MIB <= sample.tenants["engine"] - sample.tenants["trainer"] < 220 * MIB
    assert sample.used == sum(sample.tenants.values())
    assert sample.total == 4096 * MIB


def test_released_memory_is_seen_to_fall(holder: Callable[..., Holder]) -> None:
    engine = holder(200)
    probe = PsutilProbe({"engine": lambda: [engine.pid]}, None)
    awake = probe.sample()
    engine.drop()
    asleep = probe.sample()
    assert awake.used - asleep.used >= 190 * MIB
    assert asleep.free > awake.free


def test_processes_below_a_tenants_own_are_its_too(holder: Callable[..., Holder]) -> None:
    parent = holder(0, 100)
    assert len(with_descendants([parent.pid])) == 2
    assert PsutilProbe({"engine": lambda: [parent.pid]}, None).sample().used > 100 * MIB


def test_a_process_of_two_tenants_is_used_once(holder: Callable[..., Holder]) -> None:
    shared = holder(50)
    sample = PsutilProbe({"a": lambda: [shared.pid], "b": lambda: [shared.pid]}, None).sample()
    assert sample.used < sum(sample.tenants.values())
    assert sample.used == pytest.approx(sample.tenants["a"], rel=0.2)


def test_a_process_that_ended_holds_nothing(holder: Callable[..., Holder]) -> None:
    gone, alive = holder(50), holder(10)
    gone.end()
    sample = PsutilProbe({"engine": lambda: [gone.pid, alive.pid]}, None).sample()
    assert sample.tenants == {"engine": sample.used}
    assert 10 * MIB <= sample.used < 50 * MIB
    assert resident_bytes(gone.pid) == 0


def test_a_tenant_without_processes_is_known_to_hold_nothing() -> None:
    assert PsutilProbe({"trainer": lambda: []}, None).sample().tenants == {"trainer": 0}


def test_an_unreadable_tenant_is_absent_and_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, holder: Callable[..., Holder]
) -> None:
    """Another user's process under `hidepid` cannot be had without root, so the refusal is made."""
    hidden, seen = holder(0), holder(0)
    read_bytes = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path == Path(f"/proc/{hidden.pid}/status"):
            raise PermissionError(13, "Permission denied", str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    probe = PsutilProbe({"engine": lambda: [hidden.pid], "trainer": lambda: [seen.pid]}, None)
    for _ in range(2):
        assert probe.sample().tenants.keys() == {"trainer"}
    assert caplog.text.count("'engine' cannot be read") == 1


def test_the_reading_agrees_with_the_kernels_proportional_one(
    holder: Callable[..., Holder],
) -> None:
    one = holder(100)
    rollup = Path(f"/proc/{one.pid}/smaps_rollup").read_text().splitlines()
    proportional = sum(
        int(line.split()[1]) * 1024 for line in rollup if line.startswith(("Pss_Anon", "Pss_Shmem"))
    )
    assert resident_bytes(one.pid) == pytest.approx(proportional, rel=0.02)


def test_without_a_budget_the_total_is_no_more_than_the_machine_has() -> None:
    probe = make_probe("cpu", {"engine": lambda: [os.getpid()]}, None, environment={})
    assert probe.provider == "psutil"
    assert 0 < probe.sample().total == usable_ram_bytes() <= psutil.virtual_memory().total
    probe.release()
    probe.release()
