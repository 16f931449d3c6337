"""What of a run outlives its process, the trainer's own state aside; and who keeps it.

One value goes into a checkpoint and comes out of it: ``RunState``. The default is that of a run
that resumes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal, Protocol

from colocate.core.buffer_snapshot import BufferSnapshot
from colocate.core.events import LinePosition, PromptCursor
from colocate.core.types import TrajectoryId, Version
from colocate.ports import Trainer

Speaker = Literal["prompt", "agent", "environment"]


def digest_of(columns: Iterable[Any]) -> str:
    """Of the four columns of a content, in their order, taken from their bytes."""
    digest = blake2b(digest_size=8)
    for column in columns:
        digest.update(column)
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedContent:
    """What a trajectory consists of, in bytes: see ``colocate.rollout.content.Content``.

    ``token_ids`` and ``versions`` are 32-bit integers, ``loss_mask`` 8-bit ones, ``logprobs`` are
    64-bit floats, each in the machine's order of bytes. ``turns`` and their ends are those that
    the scheduler has been told of.
    """

    token_ids: bytes
    loss_mask: bytes
    logprobs: bytes
    versions: bytes
    turns: tuple[tuple[Speaker, str], ...]
    turn_ends: tuple[int, ...]
    rewards: tuple[float, ...]
    cut_by: str | None
    truncated: bool
    environment_seed: int
    reward_parts: Mapping[str, float] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """As ``Content.digest``."""
        columns = (self.token_ids, self.loss_mask, self.logprobs, self.versions)
        return digest_of(columns) if self.token_ids else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """Where a run begins, or what a checkpoint holds.

    Attributes:
        version: The trainer's.
        cursor: Of the prompt stream.
        learned: What the cost model knew (``CostModel.snapshot``); None where nothing is on record.
        buffer: None where nothing is on record: checkpoints of before buffers were kept.
        contents: Of ``buffer.contents``, those that have any.
        saved_after: The journal's line that this is the state after.
        evaluated: The last version that the run's folder has an evaluation of; in no checkpoint.
    """

    version: Version = Version(0)
    cursor: PromptCursor = field(default_factory=PromptCursor)
    learned: Mapping[str, Any] | None = None
    buffer: BufferSnapshot | None = None
    contents: Mapping[TrajectoryId, SavedContent] = field(default_factory=dict)
    saved_after: LinePosition | None = None
    evaluated: Version | None = None

    def check_contents(self) -> None:
        """Raises:
        ValueError: where a content is missing, or is not what the buffer's record says.
        """
        for record in self.buffer.contents if self.buffer is not None else ():
            content = self.contents.get(record.id)
            digest = "" if content is None else content.digest
            if digest != record.digest:
                raise ValueError(
                    f"the content of trajectory {record.id} has the digest "
                    f"{digest or 'of nothing'}, not {record.digest}"
                )


class Checkpoints(Protocol):
    """Where checkpoints are kept; the folder of one holds the trainer's own files too."""

    async def save(self, trainer: Trainer, state: RunState) -> None: ...

    async def restore(self, trainer: Trainer, version: Version) -> None: ...

    async def abandon(self, after: Version) -> None:
        """The run has gone back to a version: no newer one of its own is gone on from any more."""

    async def rate(self, version: Version, value: float, by: str) -> None:
        """Tells what the checkpoint of a version is worth: more is better; ``by`` says of what."""
