"""Room in /dev/shm."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from colocate.adapters.memory.shared_memory import (
    SharedMemoryError,
    check_shared_memory,
    read_shared_memory,
)

MIB = 2**20


@pytest.fixture
def mount_tmpfs(tmp_path: Path) -> Iterator[Callable[[str], Path]]:
    mounted: list[Path] = []

    def mount(size: str) -> Path:
        folder = tmp_path / f"shm-{size}"
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"may not mount: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", str(folder)], check=True)


def test_the_machines_own_is_read() -> None:
    memory = read_shared_memory()
    assert 0 < memory.free <= memory.total
    assert check_shared_memory(1) == pytest.approx(memory.free, rel=0.2)


def test_more_than_is_free_is_refused_with_a_remedy() -> None:
    with pytest.raises(SharedMemoryError, match=r"--shm-size") as caught:
        check_shared_memory(2**62)
    assert str(2**62) in str(caught.value)


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SharedMemoryError, match="does not exist"):
        read_shared_memory(tmp_path / "none")


def test_what_is_written_is_no_longer_free(mount_tmpfs: Callable[[str], Path]) -> None:
    folder = mount_tmpfs("64m")
    assert read_shared_memory(folder).total == 64 * MIB
    assert check_shared_memory(64 * MIB, folder) == 64 * MIB
    (folder / "bucket").write_bytes(bytes(16 * MIB))
    assert check_shared_memory(48 * MIB, folder) == 48 * MIB
    with pytest.raises(SharedMemoryError, match=f"{48 * MIB} of {64 * MIB}"):
        check_shared_memory(48 * MIB + 1, folder)


def test_without_a_limit_of_its_own_the_ram_is_the_limit(
    mount_tmpfs: Callable[[str], Path],
) -> None:
    memory = read_shared_memory(mount_tmpfs("0"))
    assert memory.total == psutil.virtual_memory().total
    assert 0 < memory.free <= memory.total
