"""Folders and checkpoints that a run can, or cannot, go on from. Nothing heavy is started."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from colocate.app import run
from colocate.checkpoints import (
    CheckpointError,
    FolderCheckpoints,
    Origin,
    find_checkpoint,
    list_checkpoints,
    read_state,
)
from colocate.cli.compose import plan_jobs
from colocate.cli.train import parse
from colocate.config import RunConfig
from colocate.core.cost import CostModel
from colocate.core.events import PromptCursor
from colocate.core.types import GroupId, Version
from colocate.preflight import validate
from colocate.sim.ports import SimTrainer, SimTrainerSettings

CURSOR = PromptCursor(next_position=GroupId(9), pending=(GroupId(4), GroupId(7)))
CURSOR_STATE = {"next_position": 9, "pending": []}
LEARNED = CostModel().snapshot()


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
        asyncio.run(checkpoints.save(trainer, Version(version), CURSOR, LEARNED))


def names(run_dir: Path) -> list[str]:
    return [path.name for path in list_checkpoints(run_dir / "checkpoints")]


def test_the_newest_checkpoints_are_kept_by_number_and_not_by_name(tmp_path: Path) -> None:
    save(tmp_path, 9, 10, 1_000_000, keep=2)
    assert names(tmp_path) == ["step_000010", "step_1000000"]
    found = find_checkpoint("auto", tmp_path)
    assert found is not None
    assert read_state(found) == Origin(version=Version(1_000_000), cursor=CURSOR, learned=LEARNED)


def test_a_checkpoint_of_before_costs_were_kept_can_be_resumed(tmp_path: Path) -> None:
    save(tmp_path, 3)
    state = tmp_path / "checkpoints" / "step_000003" / "state.json"
    content = json.loads(state.read_text())
    del content["learned"]
    state.write_text(json.dumps(content))
    assert read_state(state.parent) == Origin(version=Version(3), cursor=CURSOR)


@pytest.mark.parametrize("keep", [1, 2])
def test_a_checkpoint_just_written_is_kept_beside_newer_ones_of_an_earlier_life(
    tmp_path: Path, keep: int
) -> None:
    save(tmp_path, 20, 30)
    save(tmp_path, 11, keep=keep)
    assert "step_000011" in names(tmp_path)
    assert len(names(tmp_path)) == keep


def test_a_checkpoint_that_was_being_written_is_never_taken_for_whole(tmp_path: Path) -> None:
    save(tmp_path, 3)

    class Dying(WritingTrainer):
        async def save(self, folder: Path) -> None:
            await super().save(folder)
            raise OSError("the disk is full")

    with pytest.raises(OSError, match="full"):
        asyncio.run(FolderCheckpoints(tmp_path, keep=2).save(Dying(), Version(4), CURSOR, LEARNED))
    assert names(tmp_path) == ["step_000003"]
    save(tmp_path, 4)
    assert names(tmp_path) == ["step_000003", "step_000004"]


def test_the_trainer_and_the_state_of_a_checkpoint_must_agree(tmp_path: Path) -> None:
    save(tmp_path, 3)
    checkpoint = find_checkpoint(str(tmp_path), tmp_path)
    checkpoints = FolderCheckpoints(tmp_path, keep=2, resume_from=checkpoint)
    with pytest.raises(CheckpointError, match="version 3"):
        asyncio.run(checkpoints.restore(WritingTrainer(), Version(5)))


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
