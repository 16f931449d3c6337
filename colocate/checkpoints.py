"""Checkpoints as folders: ``checkpoints/step_000012``, say, which holds

    state.json       versions, prompt cursor, costs, and the digest of
    buffer.msgpack   the buffer with the contents of its trajectories: unfinished ones too
    trainer/         the trainer's own files

``checkpoints/best.json`` names the best of those that were rated, which no rotation removes. One
that is newer than what the run has gone back to is set aside as ``abandoned_step_000012``.

A checkpoint is written aside, made durable, and renamed when whole, so one that is torn is never
taken for whole. Nothing in the first two can execute anything when it is read.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from colocate.core.buffer_snapshot import BufferSnapshot
from colocate.core.events import LinePosition, PromptCursor
from colocate.core.types import TrajectoryId, Version
from colocate.ports import Trainer
from colocate.run_state import RunState, SavedContent

SCHEMA = 2
READABLE = (1, SCHEMA)
"""Schema 1 has no buffer: its cursor names the prompts of unfinished groups, to be drawn again."""

_STATE = "state.json"
_BUFFER = "buffer.msgpack"
_TRAINER = "trainer"
_BEST = "best.json"
_NAME = re.compile(r"step_\d+")


@dataclass(frozen=True, slots=True, kw_only=True)
class _BufferFile:
    """What ``buffer.msgpack`` holds."""

    buffer: BufferSnapshot
    contents: Mapping[TrajectoryId, SavedContent]


class CheckpointError(Exception):
    """There is no usable checkpoint where one was named."""


class FolderCheckpoints:
    """Keeps the newest ``keep`` checkpoints of a run's folder, and the best one that was rated."""

    def __init__(self, run_dir: Path, *, keep: int, resume_from: Path | None = None) -> None:
        self._journal = run_dir / "events.jsonl"
        self._folder = run_dir / "checkpoints"
        self._keep = keep
        self._resume_from = resume_from
        self._saved: set[Version] = set()
        self._has_one_before = resume_from is not None

    async def save(self, trainer: Trainer, state: RunState) -> None:
        """Writes the trainer and the run's state; drops the oldest checkpoints beyond ``keep``.

        Raises:
            ValueError: where a content is not what the buffer knows; nothing was written.
        """
        whole = _place_of(self._folder, state.version)
        partial = self._folder / f".partial-{whole.name}"
        await asyncio.to_thread(shutil.rmtree, partial, ignore_errors=True)
        await asyncio.to_thread(write_state, partial, state)
        await trainer.save(partial / _TRAINER)
        await asyncio.to_thread(_commit, partial, whole, self._journal)
        self._saved.add(state.version)
        # Until the scheduler knows of this one, the run may go back to the one before.
        most = max(self._keep, 2) if self._has_one_before else self._keep
        self._has_one_before = True
        kept = {whole, find_best(self._folder)}
        others = [path for path in list_checkpoints(self._folder) if path not in kept]
        for old in others[: max(0, len(others) - most + 1)]:
            await asyncio.to_thread(shutil.rmtree, old)

    async def rate(self, version: Version, value: float, by: str) -> None:
        """Names the checkpoint of a version as the best, if it is."""
        await asyncio.to_thread(name_best, self._folder, version, value, by)

    async def abandon(self, after: Version) -> None:
        """Sets checkpoints aside that are newer than what the run goes back to."""
        await asyncio.to_thread(set_aside, self._folder, after=after)

    async def restore(self, trainer: Trainer, version: Version) -> None:
        """Reads the checkpoint that the run resumes from, or one that it has written since.

        Raises:
            CheckpointError: where the trainer's files are of another version than its state.
        """
        checkpoint = _place_of(self._folder, version)
        if version not in self._saved:
            assert self._resume_from is not None
            checkpoint = self._resume_from
        restored = await trainer.restore(checkpoint / _TRAINER)
        if restored != version:
            raise CheckpointError(
                f"{checkpoint}: its trainer is at version {restored}, its state says {version}"
            )


def _place_of(folder: Path, version: int) -> Path:
    return folder / f"step_{version:06d}"


def _step_of(checkpoint: Path) -> int:
    return int(checkpoint.name.removeprefix("step_"))


def list_checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints of a folder, the oldest first, by number and not by name."""
    return sorted((p for p in folder.glob("step_*") if _NAME.fullmatch(p.name)), key=_step_of)


def find_checkpoint(resume: str, run_dir: Path) -> Path | None:
    """The checkpoint that ``resume`` names: None for ``never``, or where ``auto`` finds none.

    A path may name a checkpoint, or a run's folder, whose newest checkpoint is meant.

    Raises:
        CheckpointError: where a path names neither.
    """
    if resume == "never":
        return None
    if resume == "auto":
        return next(reversed(list_checkpoints(run_dir / "checkpoints")), None)
    path = Path(resume)
    if (path / _STATE).is_file():
        return path
    newest = next(reversed(list_checkpoints(path / "checkpoints")), None)
    if newest is None:
        raise CheckpointError(
            f"resume: {path} is neither a checkpoint nor a run's folder that has one. Give a "
            "folder like RUN_DIR/checkpoints/step_000012, or resume=never"
        )
    return newest


def find_best(folder: Path) -> Path | None:
    """The best rated checkpoint of a folder of checkpoints; None where none was rated.

    Raises:
        CheckpointError: what names it cannot be read.
    """
    best = _read_best(folder)
    if best is None:
        return None
    checkpoint = _place_of(folder, best["step"])
    return checkpoint if checkpoint.is_dir() else None


def name_best(folder: Path, version: int, value: float, by: str) -> None:
    """Names a checkpoint as the best, unless another is that was rated by the same and no lower.

    Nothing is named where it is not there: a run that goes on from another folder's checkpoint, of
    which it has none of its own, may rate that.
    """
    best = _read_best(folder)
    if best and find_best(folder) and best["by"] == by and best["value"] >= value:
        return
    if not _place_of(folder, version).is_dir():
        return
    written = folder / f".{_BEST}.{os.getpid()}"
    written.write_text(json.dumps({"step": version, "value": value, "by": by}) + "\n")
    _sync(written)
    written.replace(folder / _BEST)
    _sync(folder)


def set_aside(folder: Path, *, after: int) -> None:
    """Renames the checkpoints of steps that a run takes again, and forgets a rating of theirs."""
    for path in list_checkpoints(folder):
        if _step_of(path) > after:
            aside = path.with_name(f"abandoned_{path.name}")
            shutil.rmtree(aside, ignore_errors=True)
            path.replace(aside)
    best = _read_best(folder)
    if best is not None and best["step"] > after:
        (folder / _BEST).unlink()


def _read_best(folder: Path) -> dict[str, Any] | None:
    path = folder / _BEST
    if not path.exists():
        return None
    try:
        best = json.loads(path.read_text())
        return {"step": int(best["step"]), "value": float(best["value"]), "by": str(best["by"])}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error!r}. Delete it") from error


def write_state(checkpoint: Path, state: RunState) -> None:
    """Writes what ``read_state`` reads, into a new folder.

    Raises:
        ValueError: where a content is not what the buffer knows; nothing was written.
    """
    assert state.buffer is not None, "whoever runs has a buffer"
    state.check_contents()
    checkpoint.mkdir(parents=True)
    file = _BufferFile(buffer=state.buffer, contents=state.contents)
    data = msgspec.msgpack.encode(file)
    (checkpoint / _BUFFER).write_bytes(data)
    content = {
        "schema": SCHEMA,
        "version": state.version,
        "cursor": state.cursor,
        "learned": state.learned,
        "saved_after": state.saved_after,
        "buffer": _checksum(data),
    }
    (checkpoint / _STATE).write_bytes(msgspec.json.encode(content) + b"\n")


def read_state(checkpoint: Path) -> RunState:
    """The state that a checkpoint holds beside the trainer's files.

    Raises:
        CheckpointError: where it cannot be read, is of another schema, or was altered.
    """
    path = checkpoint / _STATE
    try:
        state = json.loads(path.read_text())
        if state["schema"] not in READABLE:
            raise CheckpointError(
                f"{checkpoint} is of schema {state['schema']}; this version reads "
                f"{' and '.join(map(str, READABLE))}. Resume it with the version of colocate that "
                "wrote it, or begin anew (resume=never, in another folder)"
            )
        learned = state.get("learned")  # checkpoints of earlier versions have none
        if not isinstance(learned, dict | None):
            raise CheckpointError(f"{path}: 'learned' is no table of values")
        known = RunState(
            version=Version(state["version"]),
            cursor=msgspec.convert(state["cursor"], PromptCursor),
            learned=learned,
            saved_after=msgspec.convert(state.get("saved_after"), LinePosition | None),
        )
        return known if state["schema"] == 1 else _read_buffer(checkpoint, known, state["buffer"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{path} cannot be read: {error!r}") from error


def _read_buffer(checkpoint: Path, known: RunState, expected: str) -> RunState:
    path = checkpoint / _BUFFER
    try:
        data = path.read_bytes()
        if (found := _checksum(data)) != expected:
            raise ValueError(f"its digest is {found}, not {expected}: it was torn or altered")
        file = msgspec.msgpack.decode(data, type=_BufferFile)
        state = replace(known, buffer=file.buffer, contents=file.contents)
        state.check_contents()
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be resumed from: {error}. Take an older checkpoint "
            f"(resume={checkpoint.parent}/step_...), if there is one"
        ) from error
    return state


def _checksum(data: bytes) -> str:
    return blake2b(data, digest_size=16).hexdigest()


def _commit(partial: Path, whole: Path, journal: Path) -> None:
    # The state names a line of the journal: that must not be lost where the state is kept.
    for path in [*partial.rglob("*"), partial, *([journal] if journal.exists() else [])]:
        _sync(path)
    # Of the same step, where a run goes on from another folder's checkpoint.
    before = partial.with_name(f".before-{whole.name}")
    shutil.rmtree(before, ignore_errors=True)
    if whole.exists():
        whole.replace(before)
    partial.replace(whole)
    _sync(whole.parent)
    shutil.rmtree(before, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
