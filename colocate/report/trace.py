"""The run's ``trace.json``: open it at https://ui.perfetto.dev or in ``chrome://tracing``.

Format: the array form of Chrome's trace events, one event a line. The array's closing bracket may
be missing, so the file can be opened while the run lasts and after it was killed.

    process 1 "schedule"    phases, memory and other counters, instants
    process 2 "requests"    one slice for each request at the engine
    process 3 "environments"  one slice for each environment step

Requests and steps are async slices ("b" and "e") whose id is their trajectory: the viewer stacks
those that overlap, so that thousands of trajectories need no thousand rows.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from colocate.core.types import MemorySample

MEMORY_COUNTER = "memory_bytes"
HOST_MEMORY_COUNTER = "host_memory_bytes"

_SCHEDULE, _REQUESTS, _ENVIRONMENTS = 1, 2, 3
_PROCESS_NAMES = {
    _SCHEDULE: "schedule",
    _REQUESTS: "requests at the engine",
    _ENVIRONMENTS: "environment steps",
}
_BUFFER_BYTES = 64 * 1024
# One encoder for all: `json.dumps` with options makes a new one for each event.
_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode


class TraceWriter:
    """Streams events to the file. Memory is one buffer, whatever the run's length.

    Times are seconds on the run's clock, and may come in any order: viewers sort. May be called
    from several threads.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("w", buffering=_BUFFER_BYTES, encoding="utf-8")
        self._file.write("[")
        self._first = True
        self._lock = threading.Lock()
        for pid, name in _PROCESS_NAMES.items():
            common: dict[str, Any] = {"ph": "M", "pid": pid, "tid": 0}
            self._write({**common, "name": "process_name", "args": {"name": name}})
            self._write({**common, "name": "process_sort_index", "args": {"sort_index": pid}})
        self._write(
            {
                "ph": "M",
                "pid": _SCHEDULE,
                "tid": 1,
                "name": "thread_name",
                "args": {"name": "phase"},
            }
        )
        self.flush()

    def phase(self, name: str, start_s: float, end_s: float) -> None:
        """A phase that has ended. Flushes, so that a killed run's file is whole up to here."""
        self._write(
            {
                "ph": "X",
                "cat": "phase",
                "name": name,
                "pid": _SCHEDULE,
                "tid": 1,
                "ts": _micros(start_s),
                "dur": _micros(end_s) - _micros(start_s),
            }
        )
        self.flush()

    def request(
        self, trajectory: int, start_s: float, end_s: float, args: Mapping[str, Any]
    ) -> None:
        """A request that was at the engine; ``args`` are plain JSON values to show with it."""
        self._slice(_REQUESTS, "request", trajectory, start_s, end_s, args)

    def environment_step(
        self, trajectory: int, start_s: float, end_s: float, args: Mapping[str, Any]
    ) -> None:
        """An environment step that has ended; ``args`` as for a request."""
        self._slice(_ENVIRONMENTS, "environment step", trajectory, start_s, end_s, args)

    def counter(self, name: str, time_s: float, values: Mapping[str, float]) -> None:
        """Numbers at an instant, drawn as stacked areas: one area for each key."""
        self._write(
            {
                "ph": "C",
                "name": name,
                "pid": _SCHEDULE,
                "tid": 0,
                "ts": _micros(time_s),
                "args": dict(values),
            }
        )

    def memory(self, time_s: float, sample: MemorySample) -> None:
        """A reading, as counters of bytes: one area a tenant, and one for all else on the device.

        Where no tenant's share is known, one area for the whole. The host's RAM is a counter of
        its own: what the run holds of it, and what it may still take.
        """
        known = sum(sample.tenants.values())
        values: dict[str, float] = dict(sample.tenants)
        if sample.used > known:
            values["other" if values else "used"] = sample.used - known
        self.counter(MEMORY_COUNTER, time_s, values)
        host = {"used": sample.host_used, "free": sample.host_free}
        known_of_host = {name: value for name, value in host.items() if value is not None}
        if known_of_host:
            self.counter(HOST_MEMORY_COUNTER, time_s, known_of_host)

    def telemetry(self, time_s: float, values: Mapping[str, float]) -> None:
        """Values named as ``"gpu0.power_w"``: one counter for what stands before the first dot.

        Perfetto draws a track for each value of a counter, so that units do not mix.
        """
        tracks: dict[str, dict[str, float]] = {}
        for name, value in values.items():
            track, _, key = name.partition(".")
            tracks.setdefault(track, {})[key or "value"] = value
        for track, shown in tracks.items():
            self.counter(track, time_s, shown)

    def instant(self, name: str, time_s: float, args: Mapping[str, Any] | None = None) -> None:
        """Something that happened: a line across the schedule."""
        self._write(
            {
                "ph": "i",
                "s": "p",
                "cat": "event",
                "name": name,
                "pid": _SCHEDULE,
                "tid": 1,
                "ts": _micros(time_s),
                "args": dict(args or {}),
            }
        )

    def flush(self) -> None:
        with self._lock:
            self._file.flush()

    def close(self) -> None:
        """Ends the array. Safe to call twice; what comes later is refused."""
        with self._lock:
            if not self._file.closed:
                self._file.write("\n]\n")
                self._file.close()

    def __enter__(self) -> TraceWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _slice(
        self,
        pid: int,
        name: str,
        trajectory: int,
        start_s: float,
        end_s: float,
        args: Mapping[str, Any],
    ) -> None:
        common = {"cat": name, "name": name, "pid": pid, "tid": 0, "id": trajectory}
        shown = {"trajectory": trajectory, **args}
        self._write(
            {**common, "ph": "b", "ts": _micros(start_s), "args": shown},
            {**common, "ph": "e", "ts": _micros(end_s)},
        )

    def _write(self, *events: dict[str, Any]) -> None:
        lines = [_encode(event) for event in events]
        with self._lock:
            for line in lines:
                self._file.write("\n" if self._first else ",\n")
                self._file.write(line)
                self._first = False


def read_trace(path: Path) -> Iterator[dict[str, Any]]:
    """The events of a trace, one by one; closed or not: a last line that is cut off is left out.

    Raises:
        ValueError: a line that is no event, other than the last.
    """
    broken: tuple[int, json.JSONDecodeError] | None = None
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if broken is not None:
                raise ValueError(f"{path}, line {broken[0]}: no trace event") from broken[1]
            text = line.strip().rstrip(",")
            if text in ("[", "]", ""):
                continue
            try:
                yield json.loads(text)
            except json.JSONDecodeError as error:
                broken = (number, error)


def _micros(time_s: float) -> int:
    return round(time_s * 1e6)
