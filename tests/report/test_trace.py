"""The trace is a Chrome trace at any moment of its life, and its slices pair up."""

from __future__ import annotations

import json
import threading
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from colocate.core.types import MemorySample
from colocate.report.trace import (
    HOST_MEMORY_COUNTER,
    MEMORY_COUNTER,
    TraceWriter,
    read_trace,
)


def read_closed(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())
    return events


def test_a_closed_trace_is_one_json_array(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with TraceWriter(path) as trace:
        trace.phase("rollout", 1.0, 2.5)
        trace.request(7, 1.1, 1.9, {"tokens": 3})
        trace.environment_step(7, 1.9, 2.2, {})
        trace.counter("requests", 1.5, {"engine": 4})
        trace.instant("swap due", 2.5, {"policy": "interval"})
    events = read_closed(path)
    assert events == list(read_trace(path))
    (phase,) = [event for event in events if event.get("cat") == "phase"]
    assert (phase["ph"], phase["ts"], phase["dur"]) == ("X", 1_000_000, 1_500_000)
    assert {event["ph"] for event in events} == {"M", "X", "b", "e", "C", "i"}
    trace.close()


def test_neighbouring_phases_touch_without_overlap(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    edges = [0.1 * 3 ** (index / 7) for index in range(60)]
    with TraceWriter(path) as trace:
        for start_s, end_s in pairwise(edges):
            trace.phase("rollout", start_s, end_s)
    phases = [event for event in read_closed(path) if event["ph"] == "X"]
    ends = [phase["ts"] + phase["dur"] for phase in phases]
    assert ends[:-1] == [phase["ts"] for phase in phases[1:]]


@given(
    steps=st.lists(
        st.tuples(st.integers(0, 20), st.floats(0, 1e5), st.floats(0, 1e3), st.booleans()),
        max_size=40,
    )
)
def test_every_slice_begins_and_ends_once(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[int, float, float, bool]]
) -> None:
    path = tmp_path_factory.mktemp("trace") / "trace.json"
    with TraceWriter(path) as trace:
        for trajectory, start_s, length_s, generated in steps:
            write = trace.request if generated else trace.environment_step
            write(trajectory, start_s, start_s + length_s, {})
    open_slices: dict[tuple[str, int], list[int]] = defaultdict(list)
    num_closed = 0
    for event in read_closed(path):
        if event["ph"] == "b":
            open_slices[event["cat"], event["id"]].append(event["ts"])
        elif event["ph"] == "e":
            assert open_slices[event["cat"], event["id"]].pop() <= event["ts"]
            num_closed += 1
    assert num_closed == len(steps)
    assert not any(open_slices.values())


def test_a_trace_can_be_read_after_the_run_was_killed(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    trace = TraceWriter(path)
    trace.phase("rollout", 0.0, 1.0)
    trace.phase("parking", 1.0, 2.0)
    whole = path.read_text()
    path.write_text(whole[:-20])
    assert [e["name"] for e in read_trace(path) if e.get("cat") == "phase"] == ["rollout"]
    path.write_text(whole + "\n]")
    assert len(read_closed(path)) == len(whole.splitlines()) - 1
    trace.close()


def test_a_broken_line_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text('[\n{"ph":"M"},\n{"ph":\n{"ph":"M"}\n]\n')
    with pytest.raises(ValueError, match="line 3"):
        list(read_trace(path))


def test_memory_adds_up_to_what_is_used(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with TraceWriter(path) as trace:
        trace.memory(1.0, MemorySample(used=10, total=20, tenants={"engine": 3, "trainer": 4}))
        trace.memory(2.0, MemorySample(used=10, total=20))
        trace.memory(3.0, MemorySample(used=7, total=20, tenants={"engine": 3, "trainer": 4}))
    readings = [event["args"] for event in read_closed(path) if event["name"] == MEMORY_COUNTER]
    assert readings == [
        {"engine": 3, "trainer": 4, "other": 3},
        {"used": 10},
        {"engine": 3, "trainer": 4},
    ]


def test_the_hosts_memory_is_a_track_of_its_own_where_it_is_known(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with TraceWriter(path) as trace:
        trace.memory(1.0, MemorySample(used=10, total=20, host_used=6, host_free=30))
        trace.memory(2.0, MemorySample(used=10, total=20, host_free=29))
        trace.memory(3.0, MemorySample(used=10, total=20))
    readings = [e["args"] for e in read_closed(path) if e["name"] == HOST_MEMORY_COUNTER]
    assert readings == [{"used": 6, "free": 30}, {"free": 29}]


def test_telemetry_is_one_counter_for_each_thing_that_was_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with TraceWriter(path) as trace:
        trace.telemetry(
            1.5,
            {"gpu0.power_w": 310.5, "gpu0.temperature_c": 61, "gpu1.power_w": 80, "uptime": 7},
        )
        trace.telemetry(2.0, {})
    counters = [event for event in read_closed(path) if event["ph"] == "C"]
    assert {event["ts"] for event in counters} == {1_500_000}
    assert {event["name"]: event["args"] for event in counters} == {
        "gpu0": {"power_w": 310.5, "temperature_c": 61},
        "gpu1": {"power_w": 80},
        "uptime": {"value": 7},
    }


def test_threads_do_not_tear_each_others_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    with TraceWriter(path) as trace:
        threads = [
            threading.Thread(
                target=lambda name=f"counter {index}": [
                    trace.counter(name, time_s, {"value": time_s}) for time_s in range(500)
                ]
            )
            for index in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sum(event["ph"] == "C" for event in read_closed(path)) == 2000


def test_a_number_that_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "trace.json") as trace, pytest.raises(ValueError, match="JSON"):
        trace.counter("loss", 0.0, {"value": float("nan")})
    read_closed(tmp_path / "trace.json")
