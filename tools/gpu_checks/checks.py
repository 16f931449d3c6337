"""What a part tells of its checks."""

from __future__ import annotations

import json
from pathlib import Path


class Checks:
    """Rows of the table, kept in a file from the first on: a part that dies keeps what it had."""

    def __init__(self, path: Path, part: str) -> None:
        self._path = path
        self._part = part
        self._rows: list[dict[str, str]] = []
        self._write()

    def check(self, name: str, passed: bool, figure: str) -> None:
        self._add(name, "ok" if passed else "FAILED", figure)

    def skip(self, name: str, reason: str) -> None:
        self._add(name, "skipped", reason)

    def broke(self, error: BaseException) -> None:
        """The part ended here."""
        while isinstance(error, BaseExceptionGroup):
            error = error.exceptions[0]
        self._add("", "FAILED", f"{type(error).__name__}: {' '.join(str(error).split())}"[:400])

    def _add(self, name: str, result: str, figure: str) -> None:
        check = f"{self._part}: {name}" if name else self._part
        self._rows.append({"check": check, "result": result, "figure": figure})
        self._write()

    def _write(self) -> None:
        self._path.write_text(json.dumps(self._rows))


def mib(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:,.0f} MiB"
