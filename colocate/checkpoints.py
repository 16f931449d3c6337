"""Checkpoints as folders: ``checkpoints/step_000012`` with the trainer's files and ``state.json``.

A checkpoint is written aside and renamed when whole, so one that is torn is never taken for whole.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from colocate.core.events import PromptCursor
from colocate.core.types import GroupId, Version
from colocate.ports import Trainer

SCHEMA = 1
_STATE = "state.json"
_TRAINER = "trainer"
_NAME = re.compile(r"step_(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a run begins; the default resumes nothing.

    ``learned``: what the cost model knew (``CostModel.snapshot``); None where nothing is on record.
    """

    version: Version = Version(0)
    cursor: PromptCursor = field(default_factory=PromptCursor)
    learned: Mapping[str, Any] | None = None


class CheckpointError(Exception):
    """There is no usable checkpoint where one was named."""


class FolderCheckpoints:
    """Keeps the newest ``keep`` checkpoints of a run's folder."""

    def __init__(self, run_dir: Path, *, keep: int, resume_from: Path | None = None) -> None:
        self._folder = run_dir / "checkpoints"
        self._keep = keep
        self._resume_from = resume_from

    async def save(
        self,
        trainer: Trainer,
        version: Version,
        cursor: PromptCursor,
        learned: Mapping[str, Any],
    ) -> None:
        """Writes trainer, version, prompt cursor and what the cost model has learned.

        Then drops the oldest checkpoints beyond ``keep``.
        """
        whole = self._folder / f"step_{version:06d}"
        partial = self._folder / f".partial-{whole.name}"
        await asyncio.to_thread(_begin, partial)
        await trainer.save(partial / _TRAINER)
        state = {
            "schema": SCHEMA,
            "version": version,
            "cursor": asdict(cursor),
            "learned": learned,
        }
        await asyncio.to_thread(_commit, partial, whole, state)
        # The one just written stays, also where a resume from an older one left newer ones.
        others = [path for path in list_checkpoints(self._folder) if path != whole]
        for old in others[: max(0, len(others) - self._keep + 1)]:
            await asyncio.to_thread(shutil.rmtree, old)

    async def restore(self, trainer: Trainer, version: Version) -> None:
        """Reads the checkpoint that the run resumes from.

        Raises:
            CheckpointError: where the trainer's files are of another version than its state.
        """
        assert self._resume_from is not None
        restored = await trainer.restore(self._resume_from / _TRAINER)
        if restored != version:
            raise CheckpointError(
                f"{self._resume_from}: its trainer is at version {restored}, its state says "
                f"{version}"
            )


def list_checkpoints(folder: Path) -> list[Path]:
    """Whole checkpoints of a folder, the oldest first, by number and not by name."""
    found = [(int(m[1]), p) for p in folder.glob("step_*") if (m := _NAME.fullmatch(p.name))]
    return [path for _, path in sorted(found)]


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


def read_state(checkpoint: Path) -> Origin:
    """The state that a checkpoint holds beside the trainer's files.

    Raises:
        CheckpointError: where its state cannot be read, or is of another schema.
    """
    try:
        state = json.loads((checkpoint / _STATE).read_text())
        if state["schema"] != SCHEMA:
            raise CheckpointError(
                f"{checkpoint} is of schema {state['schema']}; this version reads {SCHEMA}"
            )
        cursor = PromptCursor(
            next_position=GroupId(state["cursor"]["next_position"]),
            pending=tuple(GroupId(g) for g in state["cursor"]["pending"]),
        )
        learned = state.get("learned")  # checkpoints of earlier versions have none
        if not isinstance(learned, dict | None):
            raise CheckpointError(f"{checkpoint / _STATE}: 'learned' is no table of values")
        return Origin(version=Version(state["version"]), cursor=cursor, learned=learned)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{checkpoint / _STATE} cannot be read: {error!r}") from error


def _begin(partial: Path) -> None:
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)


def _commit(partial: Path, whole: Path, state: dict[str, object]) -> None:
    (partial / _STATE).write_text(json.dumps(state) + "\n")
    for path in [*partial.rglob("*"), partial]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    shutil.rmtree(whole, ignore_errors=True)
    partial.replace(whole)
