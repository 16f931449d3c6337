"""The RAM probe on real processes."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from holder_support import MIB, Holder

from colocate.adapters.memory.factory import make_probe
from colocate.adapters.memory.host import usable_ram_bytes
from colocate.adapters.memory.psutil_probe import PsutilProbe

StartHolder = Callable[..., Holder]


def test_a_tenant_is_charged_what_its_processes_hold(holder: StartHolder) -> None:
    big, small = holder(200), holder(0)
    probe = PsutilProbe({"engine": lambda: [big.pid], "trainer": lambda: [small.pid]}, 4096 * MIB)
    sample = probe.sample()
    # What both share with other processes counts in parts, which need not be the same for both.
    assert 195 * MIB <= sample.tenants["engine"] - sample.tenants["trainer"] < 220 * MIB
    assert sample.used == sum(sample.tenants.values())
    assert sample.total == 4096 * MIB


def test_released_memory_is_seen_to_fall(holder: StartHolder) -> None:
    engine = holder(200)
    probe = PsutilProbe({"engine": lambda: [engine.pid]}, None)
    awake = probe.sample()
    engine.drop()
    asleep = probe.sample()
    assert awake.used - asleep.used >= 190 * MIB
    assert asleep.free > awake.free
    assert awake.host_used is not None
    assert asleep.host_used is not None
    assert awake.host_used - asleep.host_used >= 190 * MIB


def test_processes_below_a_tenants_own_are_its_too(holder: StartHolder) -> None:
    parent = holder(0, 100)
    assert PsutilProbe({"engine": lambda: [parent.pid]}, None).sample().used > 100 * MIB


def test_a_process_of_two_tenants_is_used_once(holder: StartHolder) -> None:
    shared = holder(50)
    sample = PsutilProbe({"a": lambda: [shared.pid], "b": lambda: [shared.pid]}, None).sample()
    assert sample.tenants["a"] == sample.tenants["b"] == sample.used


def test_a_process_that_ended_holds_nothing(holder: StartHolder) -> None:
    gone, alive = holder(50), holder(10)
    gone.end()
    sample = PsutilProbe({"engine": lambda: [gone.pid, alive.pid]}, None).sample()
    assert sample.tenants == {"engine": sample.used}
    assert 10 * MIB <= sample.used < 50 * MIB


def test_a_tenant_without_processes_is_known_to_hold_nothing() -> None:
    assert PsutilProbe({"trainer": lambda: []}, None).sample().tenants == {"trainer": 0}


def test_the_host_also_holds_this_process_and_what_no_tenant_is(holder: StartHolder) -> None:
    engine, _environment = holder(0), holder(100)
    before = PsutilProbe({"engine": lambda: [engine.pid]}, None).sample()
    own = bytearray(os.urandom(1) * (50 * MIB))
    after = PsutilProbe({"engine": lambda: [engine.pid]}, None).sample()
    assert before.host_used is not None
    assert after.host_used is not None
    assert before.host_used > before.used + 100 * MIB
    assert after.host_used - before.host_used == pytest.approx(len(own), rel=0.3)


def test_the_hosts_budget_is_what_is_left_where_it_is_the_tightest(holder: StartHolder) -> None:
    engine = holder(50)
    tenants = {"engine": lambda: [engine.pid]}
    loose = PsutilProbe(tenants, None).sample()
    assert loose.host_used is not None
    assert loose.host_free is not None
    tight = PsutilProbe(tenants, None, host_budget_bytes=loose.host_used + 100 * MIB).sample()
    assert tight.host_free == pytest.approx(100 * MIB, abs=5 * MIB)
    assert PsutilProbe(tenants, None, host_budget_bytes=50 * MIB).sample().host_free == 0
    available = psutil.virtual_memory().available
    assert loose.host_free <= available * 1.05


def test_an_unreadable_tenant_is_absent_and_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, holder: StartHolder
) -> None:
    """Another user's process under `hidepid` cannot be had without root, so the refusal is made."""
    hidden, seen = holder(0), holder(0)
    read_bytes = Path.read_bytes

    def refuse(path: Path) -> bytes:
        if path.parent == Path(f"/proc/{hidden.pid}"):
            raise PermissionError(13, "Permission denied", str(path))
        return read_bytes(path)

    monkeypatch.setattr(Path, "read_bytes", refuse)
    probe = PsutilProbe({"engine": lambda: [hidden.pid], "trainer": lambda: [seen.pid]}, None)
    for _ in range(2):
        sample = probe.sample()
        assert sample.tenants.keys() == {"trainer"}
        assert sample.host_used is None
        assert sample.host_free
    telemetry = probe.telemetry()
    assert "trainer.pss_bytes" in telemetry
    assert "engine.pss_bytes" not in telemetry
    assert caplog.text.count("cannot be read") == 1
    assert str(hidden.pid) in caplog.text


def test_telemetry_tells_the_sizes_of_each_tenants_group(holder: StartHolder) -> None:
    engine, trainer = holder(30, 60), holder(10)
    probe = PsutilProbe({"engine": lambda: [engine.pid], "trainer": lambda: [trainer.pid]}, None)
    telemetry = probe.telemetry()
    assert telemetry.keys() == {
        "engine.rss_bytes",
        "engine.pss_bytes",
        "trainer.rss_bytes",
        "trainer.pss_bytes",
        "host.available_bytes",
        "host.shared_memory_free_bytes",
    }
    assert 90 * MIB <= telemetry["engine.pss_bytes"] < telemetry["engine.rss_bytes"]
    assert 10 * MIB <= telemetry["trainer.pss_bytes"] < 50 * MIB
    assert 0 < telemetry["host.available_bytes"] <= usable_ram_bytes()


def test_without_a_budget_the_total_is_no_more_than_the_machine_has() -> None:
    probe = make_probe("cpu", {"engine": lambda: [os.getpid()]}, None, environment={})
    assert probe.provider == "psutil"
    assert 0 < probe.sample().total == usable_ram_bytes() <= psutil.virtual_memory().total
    probe.release()
    probe.release()
