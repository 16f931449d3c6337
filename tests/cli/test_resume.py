"""Folders and checkpoints that a run can, or cannot, go on from. Nothing heavy is started."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from colocate.app import run
from colocate.checkpoints import (
    CheckpointError,
    FolderCheckpoints,
    find_checkpoint,
    list_checkpoints,
    read_state,
)
from colocate.cli.compose import plan_jobs
from colocate.cli.train import parse
from colocate.config import RunConfig
from colocate.core.buffer_snapshot import (
    BufferSnapshot,
    GroupRecord,
    ResidentsRecord,
    TrajectoryRecord,
)
from colocate.core.cost import CostModel
from colocate.core.events import LinePosition, PromptCursor
from colocate.core.trajectory import State
from colocate.core.types import GroupId, Span, TrajectoryId, Version
from colocate.preflight import validate
from colocate.rollout.content import Content
from colocate.run_state import RunState
from colocate.sim.ports import SimTrainer, SimTrainerSettings

CURSOR = PromptCursor(next_position=GroupId(9), pending=(GroupId(4), GroupId(7)))
CURSOR_STATE = {"next_position": 9, "pending": []}
LEARNED = CostModel().snapshot()
PARTIAL = TrajectoryId(3)


def content() -> Content:
    """Of an episode in its second turn."""
    partial = Content()
    partial.append_observed([5, 6])
    partial.say("prompt", "?!")
    partial.append_sampled([7], [-0.5], [Span(version=Version(2), length=1)])
    partial.say("agent", "a")
    partial.append_observed([8])
    partial.say("environment", "low")
    partial.rewards.append(0.25)
    partial.append_sampled([9, 10], [-0.1, -0.2], [Span(version=Version(3), length=2)])
    return partial


def buffer() -> BufferSnapshot:
    """One group of one unfinished trajectory."""
    partial = TrajectoryRecord(
        id=PARTIAL,
        group=GroupId(8),
        state=State.QUEUED,
        attempt=1,
        spans=(Span(version=Version(2), length=1), Span(version=Version(3), length=2)),
        digest=content().digest(),
        num_context_tokens=6,
        num_turns=3,
        reward=None,
        crossings=1,
        num_requests=2,
        request=None,
        resumed=True,
        ending=None,
    )
    residents = ResidentsRecord(
        group_size=1,
        trajectories=(partial,),
        groups=(GroupRecord(id=GroupId(8), members=(PARTIAL,)),),
        next_trajectory=4,
        next_batch=2,
    )
    return BufferSnapshot(residents=residents)


def state_at(version: int) -> RunState:
    return RunState(
        version=Version(version),
        cursor=CURSOR,
        learned=LEARNED,
        buffer=buffer(),
        contents={PARTIAL: content().save(6, 3)},
        saved_after=LinePosition(seq=12, chain="0" * 16),
    )


def quickstart(**changes: object) -> RunConfig:
    (job,) = plan_jobs(parse(["+experiment=quickstart"])).jobs
    return validate({**job.tree, **changes})


class WritingTrainer(SimTrainer):
    """A trainer whose checkpoint is one file."""

    async def save(self, folder: Path) -> None:
        await asyncio.to_thread(folder.mkdir, parents=True)
        await asyncio.to_thread((folder / "weights").write_text, str(self.version))

    async def restore(self, folder: Path) -> Version:
        return Version(int(await asyncio.to_thread((folder / "weights").read_text)))


def save(run_dir: Path, *versions: int, keep: int = 2) -> None:
    trainer = WritingTrainer(SimTrainerSettings(move_s=0.0))
    checkpoints = FolderCheckpoints(run_dir, keep=keep)
    for version in versions:
        trainer.version = Version(version)
        asyncio.run(checkpoints.save(trainer, state_at(version)))


def names(run_dir: Path) -> list[str]:
    return [path.name for path in list_checkpoints(run_dir / "checkpoints")]


def test_the_newest_checkpoints_are_kept_by_number_and_not_by_name(tmp_path: Path) -> None:
    save(tmp_path, 9, 10, 1_000_000, keep=2)
    assert names(tmp_path) == ["step_000010", "step_1000000"]
    found = find_checkpoint("auto", tmp_path)
    assert found is not None
    assert read_state(found) == state_at(1_000_000)


def test_contents_come_back_bit_for_bit(tmp_path: Path) -> None:
    save(tmp_path, 3)
    again = Content.restore(read_state(tmp_path / "checkpoints" / "step_000003").contents[PARTIAL])
    for name in Content.__slots__:
        assert getattr(again, name) == getattr(content(), name), name


@pytest.mark.parametrize("costs", [{}, {"learned": LEARNED}])
def test_a_checkpoint_of_before_buffers_and_costs_were_kept_can_be_resumed(
    tmp_path: Path, costs: dict[str, Any]
) -> None:
    old = {"schema": 1, "version": 3, "cursor": {"next_position": 9, "pending": [4, 7]}, **costs}
    (tmp_path / "state.json").write_text(json.dumps(old))
    assert read_state(tmp_path) == RunState(version=Version(3), cursor=CURSOR, **costs)


def test_a_content_that_the_buffer_does_not_know_so_is_not_written(tmp_path: Path) -> None:
    other = content()
    other.logprobs[2] -= 1e-12
    state = dataclasses.replace(state_at(3), contents={PARTIAL: other.save(6, 3)})
    with pytest.raises(ValueError, match="trajectory 3"):
        asyncio.run(FolderCheckpoints(tmp_path, keep=2).save(WritingTrainer(), state))
    assert names(tmp_path) == []


@pytest.mark.parametrize("keep", [1, 2])
def test_a_checkpoint_just_written_is_kept_beside_newer_ones_of_an_earlier_life(
    tmp_path: Path, keep: int
) -> None:
    save(tmp_path, 20, 30)
    save(tmp_path, 11, keep=keep)
    assert "step_000011" in names(tmp_path)
    assert len(names(tmp_path)) == keep


def test_what_a_run_has_gone_back_behind_is_set_aside_and_never_resumed_from(
    tmp_path: Path,
) -> None:
    trainer = WritingTrainer(SimTrainerSettings(move_s=0.0))
    checkpoints = FolderCheckpoints(tmp_path, keep=1)
    for version in (3, 4, 5):
        trainer.version = Version(version)
        asyncio.run(checkpoints.save(trainer, state_at(version)))
        assert f"step_{version - 1:06d}" in names(tmp_path) or version == 3
    asyncio.run(checkpoints.abandon(Version(4)))
    assert names(tmp_path) == ["step_000004"]
    assert read_state(tmp_path / "checkpoints" / "abandoned_step_000005") == state_at(5)
    found = find_checkpoint("auto", tmp_path)
    assert found is not None
    assert read_state(found) == state_at(4)
    asyncio.run(checkpoints.restore(trainer, Version(4)))


def test_the_checkpoint_that_a_run_goes_on_from_outlives_its_first_own_one(tmp_path: Path) -> None:
    save(tmp_path, 3)
    origin = find_checkpoint("auto", tmp_path)
    checkpoints = FolderCheckpoints(tmp_path, keep=1, resume_from=origin)
    trainer = WritingTrainer(SimTrainerSettings(move_s=0.0))
    trainer.version = Version(4)
    asyncio.run(checkpoints.save(trainer, state_at(4)))
    asyncio.run(checkpoints.abandon(Version(3)))
    asyncio.run(checkpoints.restore(trainer, Version(3)))
    assert names(tmp_path) == ["step_000003"]


def test_a_checkpoint_that_was_being_written_is_never_taken_for_whole(tmp_path: Path) -> None:
    save(tmp_path, 3)

    class Dying(WritingTrainer):
        async def save(self, folder: Path) -> None:
            await super().save(folder)
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        asyncio.run(FolderCheckpoints(tmp_path, keep=2).save(Dying(), state_at(4)))
    assert names(tmp_path) == ["step_000003"]
    save(tmp_path, 4)
    assert names(tmp_path) == ["step_000003", "step_000004"]


def test_the_trainer_and_the_state_of_a_checkpoint_must_agree(tmp_path: Path) -> None:
    save(tmp_path, 3)
    checkpoint = find_checkpoint(str(tmp_path), tmp_path)
    checkpoints = FolderCheckpoints(tmp_path, keep=2, resume_from=checkpoint)
    with pytest.raises(CheckpointError, match="version 3"):
        asyncio.run(checkpoints.restore(WritingTrainer(), Version(5)))


def test_a_run_goes_back_to_a_checkpoint_of_its_own_and_not_to_the_one_it_came_from(
    tmp_path: Path,
) -> None:
    save(tmp_path, 3)
    origin = find_checkpoint(str(tmp_path), tmp_path)
    checkpoints = FolderCheckpoints(tmp_path, keep=2, resume_from=origin)
    trainer = WritingTrainer(SimTrainerSettings(move_s=0.0))
    trainer.version = Version(4)
    asyncio.run(checkpoints.save(trainer, state_at(4)))
    asyncio.run(checkpoints.restore(trainer, Version(4)))
    asyncio.run(checkpoints.restore(trainer, Version(3)))
    with pytest.raises(CheckpointError, match="version 3"):
        asyncio.run(checkpoints.restore(trainer, Version(5)))


def test_auto_begins_anew_where_there_is_no_checkpoint(tmp_path: Path) -> None:
    assert find_checkpoint("auto", tmp_path) is None
    assert find_checkpoint("never", tmp_path) is None


def refused(config: RunConfig, run_dir: Path, capsys: pytest.CaptureFixture[str]) -> str:
    before = sorted(p.name for p in run_dir.iterdir() if p.name != ".lock")
    assert run(config, run_dir) == 2
    assert sorted(p.name for p in run_dir.iterdir() if p.name != ".lock") == before
    return capsys.readouterr().err


def test_a_folder_with_another_run_in_it_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "events.jsonl").write_text("")
    assert "resume=auto" in refused(quickstart(), tmp_path, capsys)


@pytest.mark.parametrize(
    "state",
    [
        "",
        "{}",
        json.dumps({"schema": 99}),
        json.dumps({"schema": 1, "version": 3, "cursor": 7}),
        json.dumps({"schema": 1, "version": 3, "cursor": CURSOR_STATE, "learned": 7}),
        json.dumps({"schema": 2, "version": 3, "cursor": CURSOR_STATE}),
    ],
)
def test_a_checkpoint_whose_state_cannot_be_read_is_refused_before_anything_is_moved(
    tmp_path: Path, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "events.jsonl").write_text("")
    save(tmp_path, 3)
    (tmp_path / "checkpoints" / "step_000003" / "state.json").write_text(state)
    message = refused(quickstart(resume="auto"), tmp_path, capsys)
    assert "step_000003" in message
    assert "Traceback" not in message


def cut(data: bytes) -> bytes:
    return data[:-7]


def alter(data: bytes) -> bytes:
    return data[:50] + bytes([data[50] ^ 1]) + data[51:]


def remove(data: bytes) -> None:
    return None


@pytest.mark.parametrize("spoil", [cut, alter, remove])
def test_a_buffer_that_was_torn_or_altered_is_refused_before_anything_is_moved(
    tmp_path: Path, spoil: Callable[[bytes], bytes | None], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "events.jsonl").write_text("")
    save(tmp_path, 3)
    file = tmp_path / "checkpoints" / "step_000003" / "buffer.msgpack"
    spoilt = spoil(file.read_bytes())
    if spoilt is None:
        file.unlink()
    else:
        file.write_bytes(spoilt)
    message = refused(quickstart(resume="auto"), tmp_path, capsys)
    assert "step_000003/buffer.msgpack" in message
    assert "older checkpoint" in message
    assert len(message.splitlines()) == 1


def test_a_buffer_of_another_schema_is_refused_with_its_number(tmp_path: Path) -> None:
    folder = tmp_path / "step_000003"
    save(tmp_path, 3)
    saved = tmp_path / "checkpoints" / "step_000003"
    folder.mkdir()
    data = (saved / "buffer.msgpack").read_bytes().replace(b"schema\x01", b"schema\x09")
    state = json.loads((saved / "state.json").read_text())
    state["buffer"] = blake2b(data, digest_size=16).hexdigest()
    (folder / "buffer.msgpack").write_bytes(data)
    (folder / "state.json").write_text(json.dumps(state))
    with pytest.raises(CheckpointError, match="schema 9"):
        read_state(folder)
