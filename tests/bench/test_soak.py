"""What a soak reads and what it makes of it; the run itself is real, and is not made here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest

from tools.run_processes import processes_of
from tools.soak_run.readings import JournalTail, Reading, read_processes
from tools.soak_run.verdict import judge


def line(*actions: str) -> bytes:
    return json.dumps({"actions": [[name, {}] for name in actions]}).encode() + b"\n"


def readings(count: int, **slopes: float) -> list[Reading]:
    draw = np.random.default_rng(0)
    return [
        Reading(n, {name: 1e6 + each * n + draw.normal() for name, each in slopes.items()})
        for n in range(1, count + 1)
    ]


def test_swaps_are_counted_as_the_journal_grows_and_half_a_line_waits(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    tail = JournalTail(path)
    assert list(tail.new_swaps()) == []
    written = line("Park") + line("CloseSwap", "SetTimer")
    torn = line("CloseSwap")
    path.write_bytes(written + torn[:10])
    assert list(tail.new_swaps()) == [len(written)]
    path.write_bytes(written + torn + line("Warn"))
    assert list(tail.new_swaps()) == [len(written) + len(torn)]
    assert list(tail.new_swaps()) == []


def test_a_word_of_a_swap_in_a_message_is_no_swap(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(json.dumps({"event": "CloseSwap", "actions": []}).encode() + b"\n")
    assert list(JournalTail(path).new_swaps()) == []


def test_what_grows_is_told_from_what_does_not() -> None:
    found = {each.name: each for each in judge(readings(200, leak=1.0, still=0.0, falls=-1.0))}
    assert [name for name, each in found.items() if each.grows] == ["leak"]
    assert found["leak"].trend.slope == pytest.approx(1.0, rel=0.01)


def test_what_fills_up_and_stays_does_not_grow() -> None:
    draw = np.random.default_rng(1)
    cache = [Reading(n, {"cache": min(n, 150) + 0.1 * draw.normal()}) for n in range(1, 301)]
    (found,) = judge(cache)
    assert found.trend.is_told_from_zero
    assert not found.grows


def test_slopes_are_per_swap_where_readings_stand_for_several() -> None:
    (found,) = judge([Reading(3 * n, {"leak": 6.0 * n}) for n in range(1, 61)])
    assert found.trend.slope == pytest.approx(2.0)


def test_a_process_that_is_gone_is_named_and_not_left_out() -> None:
    found = readings(60, leak=1.0)
    del found[40].held["leak"]
    found[40].held["driver.threads"] = 1
    with pytest.raises(ValueError, match="leak is missing after 1 swaps, first after swap 41"):
        judge(found)


def test_too_few_readings_say_nothing() -> None:
    with pytest.raises(ValueError, match="at least 25 swaps"):
        judge(readings(24, leak=1.0))


def test_processes_are_told_apart_and_measured() -> None:
    child = "import sys, time; print('up', flush=True); time.sleep(60)"
    parent = (
        "import subprocess, sys\n"
        f"children = [subprocess.Popen([sys.executable, '-c', {child!r}, word]) for word in "
        "('VLLM::EngineCore', 'colocate.adapters.deepspeed.rank', 'tool')]\n"
        "sys.stdin.read()\n"
        "[c.kill() for c in children]"
    )
    with psutil.Popen(
        [sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as driver:
        for _ in range(3):
            driver.stdout.readline()
        kinds = {kind: len(found) for kind, found in processes_of(driver).items()}
        held = read_processes(driver)
        driver.stdin.close()
        driver.wait()
    assert kinds == {"driver": 1, "engine": 1, "rank": 1, "other": 1}
    for kind in kinds:
        assert held[f"{kind}.rss_bytes"] > 1e6
        assert held[f"{kind}.threads"] == 1
        assert held[f"{kind}.file_descriptors"] >= 3
    assert processes_of(driver) == {}
