"""Memory limits of control groups, read from folders laid out as the kernel does."""

from __future__ import annotations

from pathlib import Path

import pytest

from colocate.adapters.memory.control_groups import ControlGroups

GIB = 2**30
UNLIMITED = 2**63 - 4096


class Kernel:
    """Files of ``/proc`` and of mounted control groups, under a folder of the test."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._mounts: list[str] = ["22 1 0:21 / /proc rw,nosuid - proc proc rw"]
        self._membership: list[str] = []

    def mount(self, version: int, membership: str, *, mounted: str = "/") -> Path:
        top = self._root / f"v{version}"
        kind, options = ("cgroup", "rw,memory") if version == 1 else ("cgroup2", "rw,nsdelegate")
        self._mounts.append(f"30 22 0:27 {mounted} {top} rw,relatime shared:4 - {kind} x {options}")
        self._membership.append(f"4:memory:{membership}" if version == 1 else f"0::{membership}")
        top.mkdir()
        return top

    def open(self) -> ControlGroups:
        process = self._root / "process"
        process.mkdir()
        (process / "cgroup").write_text("\n".join(["9:name=systemd:/", *self._membership]) + "\n")
        (process / "mountinfo").write_text("\n".join(self._mounts) + "\n")
        return ControlGroups(process)


@pytest.fixture
def kernel(tmp_path: Path) -> Kernel:
    return Kernel(tmp_path)


def fill(folder: Path, limit: int | str, used: int = 0, cached: int = 0) -> None:
    """A group of version 2. Half of the cache is active."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.max").write_text(f"{limit}\n")
    (folder / "memory.current").write_text(f"{used}\n")
    (folder / "memory.stat").write_text(
        f"anon {used - cached}\nfile {cached}\nshmem 5\n"
        f"inactive_file {cached // 2}\nactive_file {cached // 2}\n"
    )


def test_no_limit_is_none(kernel: Kernel) -> None:
    fill(kernel.mount(2, "/user") / "user", "max", 3 * GIB)
    groups = kernel.open()
    assert groups.limit_bytes() is None
    assert groups.left_bytes() is None


def test_the_tightest_group_counts_wherever_it_is(kernel: Kernel) -> None:
    top = kernel.mount(2, "/jobs/run/step")
    fill(top / "jobs", 8 * GIB, 7 * GIB)
    fill(top / "jobs" / "run", 4 * GIB, 2 * GIB)
    fill(top / "jobs" / "run" / "step", "max", 2 * GIB)
    groups = kernel.open()
    assert groups.limit_bytes() == 4 * GIB
    assert groups.left_bytes() == GIB


def test_cached_files_are_no_hindrance(kernel: Kernel) -> None:
    fill(kernel.mount(2, "/run") / "run", 8 * GIB, 7 * GIB, cached=6 * GIB)
    assert kernel.open().left_bytes() == 7 * GIB


def test_a_limit_that_changes_is_seen(kernel: Kernel) -> None:
    folder = kernel.mount(2, "/run") / "run"
    fill(folder, "max", 3 * GIB)
    groups = kernel.open()
    fill(folder, 2 * GIB, 3 * GIB)
    assert groups.limit_bytes() == 2 * GIB
    assert groups.left_bytes() == -GIB


@pytest.mark.parametrize(
    ("membership", "mounted"),
    [("/docker/abc", "/docker/abc"), ("/", "/"), ("/../..", "/"), ("/host/path", "/docker/abc")],
    ids=["only_its_own_mounted", "its_own_as_the_root", "outside_of_the_namespace", "elsewhere"],
)
def test_a_container_finds_its_own_group_at_the_top(
    kernel: Kernel, membership: str, mounted: str
) -> None:
    fill(kernel.mount(2, membership, mounted=mounted), 4 * GIB, GIB)
    assert kernel.open().left_bytes() == 3 * GIB


def test_a_group_below_the_only_one_mounted_is_found(kernel: Kernel) -> None:
    top = kernel.mount(2, "/docker/abc/worker", mounted="/docker/abc")
    fill(top, 4 * GIB, GIB)
    fill(top / "worker", 2 * GIB, GIB)
    assert kernel.open().left_bytes() == GIB


@pytest.mark.parametrize(("limit", "left"), [(4 * GIB, 3 * GIB), (UNLIMITED, None)])
def test_groups_of_version_1_are_read_beside_an_empty_version_2(
    kernel: Kernel, limit: int, left: int | None
) -> None:
    kernel.mount(2, "/")
    folder = kernel.mount(1, "/run") / "run"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(f"{limit}\n")
    (folder / "memory.usage_in_bytes").write_text(f"{2 * GIB}\n")
    # The totals hold groups below this one too, as the usage does.
    (folder / "memory.stat").write_text(
        f"inactive_file 0\nactive_file 0\n"
        f"total_inactive_file {GIB // 2}\ntotal_active_file {GIB // 2}\n"
    )
    groups = kernel.open()
    assert groups.limit_bytes() == (None if left is None else limit)
    assert groups.left_bytes() == left


def test_this_process_has_groups_that_can_be_read() -> None:
    groups = ControlGroups()
    limit = groups.limit_bytes()
    assert (groups.left_bytes() is None) == (limit is None)
    assert limit is None or limit > 0
