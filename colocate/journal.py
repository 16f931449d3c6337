"""The append-only journal: every event with the actions that followed, one line each.

A line is ``{"seq", "type", "event", "actions", "chain"}``. ``chain`` is a digest of the line and
of the chain before it, so that a line that is missing, altered or out of place shows.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from colocate.core import actions as action_types
from colocate.core import events as event_types
from colocate.core.actions import Action
from colocate.core.events import Event, LinePosition

_MARK = b',"chain":"'
_CHAIN_LENGTH = 16


def _subclasses(module: Any, base: type) -> dict[str, type]:
    return {
        name: cls
        for name, cls in vars(module).items()
        if isinstance(cls, type) and issubclass(cls, base)
    }


_EVENTS = _subclasses(event_types, Event)
_ACTIONS = _subclasses(action_types, Action)


class JournalError(Exception):
    """The journal is not what a run wrote."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One line, decoded."""

    seq: int
    event: Event
    actions: tuple[Action, ...]


def encode_body(seq: int, event: Event, actions: Sequence[Action]) -> bytes:
    """A line without its chain."""
    return msgspec.json.encode(
        {
            "seq": seq,
            "type": type(event).__name__,
            "event": event,
            "actions": [(type(action).__name__, action) for action in actions],
        }
    )


def seal(body: bytes, previous: bytes) -> tuple[bytes, bytes]:
    """The line, and the chain that the next line needs."""
    chain = blake2b(previous + body, digest_size=_CHAIN_LENGTH // 2).hexdigest().encode()
    return body[:-1] + _MARK + chain + b'"}\n', chain


class JournalWriter:
    """Appends lines. Buffered; ``flush`` makes them visible, ``close`` makes them durable."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._seq = 0
        self._chain = b""

    def write(self, event: Event, actions: Sequence[Action]) -> None:
        line, self._chain = seal(encode_body(self._seq, event, actions), self._chain)
        self._seq += 1
        self._file.write(line)

    @property
    def position(self) -> LinePosition | None:
        """Of the last line; None before the first."""
        return LinePosition(seq=self._seq - 1, chain=self._chain.decode()) if self._seq else None

    def flush(self) -> None:
        self._file.flush()

    def close(self) -> None:
        """Raises ``OSError`` where the disk is full."""
        with self._file as file:
            file.flush()
            os.fsync(file.fileno())


def read_journal(path: Path, *, check_chain: bool = True) -> Iterator[Entry]:
    """Decodes a journal line by line.

    A last line without its end is what a killed run was just writing; it is left out.

    Args:
        check_chain: False reads on where the chain is broken; for tests of what else is caught.

    Raises:
        JournalError: naming the line and what is wrong with it.
    """
    chain = b""
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if not line.endswith(b"\n"):
                return
            body, _, tail = line.rpartition(_MARK)
            body += b"}"
            sealed, chain = seal(body, chain)
            if check_chain and sealed != line:
                raise JournalError(
                    f"{path}, line {number + 1}: its chain {tail[:_CHAIN_LENGTH]!r} does "
                    "not follow from the lines before it: a line was altered, removed or added"
                )
            try:
                yield _decode(body, number)
            except (msgspec.MsgspecError, KeyError, TypeError) as error:
                raise JournalError(f"{path}, line {number + 1}: {error}") from error


def chain_at(path: Path, seq: int) -> str | None:
    """The chain of a line, unchecked; None where the journal has no such whole line."""
    with path.open("rb") as file:
        for number, line in enumerate(file):
            if number == seq and line.endswith(b"\n"):
                return line.rpartition(_MARK)[2][:_CHAIN_LENGTH].decode(errors="replace")
    return None


def _decode(body: bytes, number: int) -> Entry:
    raw = msgspec.json.decode(body)
    if raw["seq"] != number:
        raise KeyError(f"its number is {raw['seq']}, not {number}")
    return Entry(
        seq=number,
        event=msgspec.convert(raw["event"], _EVENTS[raw["type"]]),
        actions=tuple(msgspec.convert(fields, _ACTIONS[name]) for name, fields in raw["actions"]),
    )
