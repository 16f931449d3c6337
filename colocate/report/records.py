"""``metrics.jsonl``, ``eval.jsonl``, ``summary.json``: strict JSON that no crash can spoil."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

EVALUATIONS = "eval.jsonl"
"""A line an evaluation that scored something."""


def strict_json(value: Any, *, indent: int | None = None) -> str:
    """JSON that every reader accepts.

    Raises:
        ValueError: a number that is not finite; the message names where it is.
        TypeError: a value that JSON cannot hold.
    """
    try:
        return json.dumps(value, allow_nan=False, indent=indent)
    except ValueError as error:
        where = _find_not_finite(value, "")
        raise ValueError(f"{where or 'a value'} is not finite; JSON cannot hold it") from error


def _find_not_finite(value: Any, path: str) -> str | None:
    if isinstance(value, float) and not math.isfinite(value):
        return f"{path} ({value})"
    if isinstance(value, Mapping):
        items = [(f"{path}.{key}" if path else str(key), item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    else:
        return None
    return next((found for p, item in items if (found := _find_not_finite(item, p))), None)


class MetricsWriter:
    """Appends a line for each training step or evaluation, with the kernel when it returns.

    A line that an earlier life left unfinished is cut off first, so that no line is ever broken.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("ab+", buffering=0)
        _cut_unfinished_line(self._file.fileno())

    def write(self, metrics: Mapping[str, Any]) -> None:
        """Raises ``ValueError`` where a number is not finite; nothing is written then."""
        self._file.write(strict_json(dict(metrics)).encode() + b"\n")

    def close(self) -> None:
        """Puts everything on the disk. Safe to call twice."""
        if not self._file.closed:
            os.fsync(self._file.fileno())
            self._file.close()


def _cut_unfinished_line(descriptor: int) -> None:
    end = os.fstat(descriptor).st_size
    content = os.pread(descriptor, end, 0)
    os.ftruncate(descriptor, content.rfind(b"\n") + 1)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """All whole lines of a metrics file; the last may be unfinished where the run was killed.

    Raises:
        ValueError: a whole line that is no JSON object.
    """
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_text().split("\n")[:-1], start=1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, line {number}: no JSON: {error}") from error
    return rows


def with_own_trajectories(metrics: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """A step that trained nothing but replays has neither a reward nor a lag of its own."""
    return [row for row in metrics if "reward_mean" in row]


def read_evaluations(run_dir: Path) -> list[dict[str, Any]]:
    """All evaluations of a run, of its earlier lives too; none where there is no such file.

    Raises:
        ValueError: as ``read_metrics``.
    """
    path = run_dir / EVALUATIONS
    return read_metrics(path) if path.exists() else []


def keep_steps(path: Path, *, up_to: int) -> None:
    """Drops lines of later steps: a resumed run takes those again. No file is no line."""
    if not path.exists():
        return
    kept = [row for row in read_metrics(path) if row["step"] <= up_to]
    _replace(path, "".join(strict_json(row) + "\n" for row in kept))


def write_summary(path: Path, summary: Mapping[str, Any]) -> None:
    """Replaces the file as one: a reader sees the old summary or the new one, whole.

    Raises:
        ValueError: a number that is not finite; the old file stays.
    """
    _replace(path, strict_json(dict(summary), indent=2) + "\n")


def _replace(path: Path, text: str) -> None:
    """Old text or new, whole, whenever the machine stops."""
    written = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with written.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        written.replace(path)
    except BaseException:
        written.unlink(missing_ok=True)
        raise
    # The rename itself is on the disk only when the folder is.
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
