"""Process trees and what a process holds, on real processes."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from holder_support import MIB, Holder

from colocate.adapters.memory.processes import ProcessTable, mapped_bytes, resident_bytes

StartHolder = Callable[..., Holder]


def test_a_tree_is_the_roots_and_everything_below(holder: StartHolder) -> None:
    parent, other = holder(0, 1), holder(0)
    tree = ProcessTable().read()
    below = tree.with_descendants([parent.pid])
    assert parent.pid in below
    assert len(below) == 2
    assert tree.with_descendants([parent.pid, other.pid]) == below | {other.pid}
    assert below | {other.pid} <= tree.with_descendants([os.getpid()])


def test_a_process_that_was_started_since_is_in_the_next_tree(holder: StartHolder) -> None:
    parent = holder(0)
    table = ProcessTable()
    before = table.read()
    parent.fork(0)
    assert before.with_descendants([parent.pid]) == {parent.pid}
    assert len(table.read().with_descendants([parent.pid])) == 2


def test_a_process_that_was_left_to_a_new_parent_is_found_there_after_a_while(
    tmp_path: Path,
) -> None:
    now_s = 0.0
    table = ProcessTable(refresh_s=30.0, clock=lambda: now_s)
    held_open = tmp_path / "held_open"
    os.mkfifo(held_open)
    shell = subprocess.Popen(
        ["sh", "-c", 'cat "$0" & echo $!; read line', str(held_open)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with held_open.open("w"):
        assert shell.stdout is not None
        left = int(shell.stdout.readline())
        assert left in table.read().with_descendants([shell.pid])
        assert shell.stdin is not None
        shell.stdin.close()
        shell.wait()
        new_parent = psutil.Process(left).ppid()
        assert table.read().with_descendants([shell.pid]) == set()
        assert left not in table.read().with_descendants([new_parent])
        now_s = 30.0
        assert left in table.read().with_descendants([new_parent])
    shell.stdout.close()


def test_a_process_that_ended_is_in_no_tree_and_holds_nothing(holder: StartHolder) -> None:
    gone = holder(10)
    table = ProcessTable()
    assert table.read().with_descendants([gone.pid])
    gone.end()
    assert table.read().with_descendants([gone.pid]) == set()
    assert resident_bytes(gone.pid) == 0
    assert mapped_bytes(gone.pid) == (0, 0)


@pytest.mark.parametrize("shared", [False, True], ids=["private", "shared"])
def test_private_and_shared_memory_are_held(holder: StartHolder, shared: bool) -> None:
    empty, full = holder(0, shared=shared), holder(100, shared=shared)
    held = resident_bytes(full.pid) - resident_bytes(empty.pid)
    assert held == pytest.approx(100 * MIB, rel=0.05)


def test_the_reading_agrees_with_the_kernels_proportional_one(holder: StartHolder) -> None:
    one = holder(100)
    rollup = Path(f"/proc/{one.pid}/smaps_rollup").read_text().splitlines()
    proportional = sum(
        int(line.split()[1]) * 1024 for line in rollup if line.startswith(("Pss_Anon", "Pss_Shmem"))
    )
    assert resident_bytes(one.pid) == pytest.approx(proportional, rel=0.02)


def test_mapped_files_are_in_the_mapped_size_and_only_in_parts_where_shared(
    holder: StartHolder,
) -> None:
    first, _second = holder(20), holder(20)
    mapped = mapped_bytes(first.pid)
    assert mapped.rss > resident_bytes(first.pid)
    # Two interpreters of one kind share the pages of their libraries.
    assert 20 * MIB <= mapped.pss < mapped.rss
