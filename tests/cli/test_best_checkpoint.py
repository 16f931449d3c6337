"""The best checkpoint of a run: named by its rating, kept by rotation, exported if asked for."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from colocate.checkpoints import CheckpointError, FolderCheckpoints, find_best, set_aside
from colocate.core.types import Version
from colocate.export import ExportError, export
from tests.cli.test_resume import names, save


def rate(run_dir: Path, version: int, value: float, by: str = "eval/pass@1") -> None:
    checkpoints = FolderCheckpoints(run_dir, keep=2)
    asyncio.run(checkpoints.rate(Version(version), value, by))


def best(run_dir: Path) -> str | None:
    found = find_best(run_dir / "checkpoints")
    return None if found is None else found.name


def test_rotation_never_removes_the_best(tmp_path: Path) -> None:
    save(tmp_path, 1)
    rate(tmp_path, 1, 0.9)
    for version in range(2, 7):
        save(tmp_path, version, keep=1)
        rate(tmp_path, version, 0.5)
    assert names(tmp_path) == ["step_000001", "step_000006"]
    assert best(tmp_path) == "step_000001"
    save(tmp_path, 7, keep=1)
    rate(tmp_path, 7, 0.95)
    save(tmp_path, 8, keep=1)
    assert names(tmp_path) == ["step_000007", "step_000008"]


def test_of_equally_good_ones_the_earliest_is_the_best(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    rate(tmp_path, 1, 0.5)
    rate(tmp_path, 2, 0.5)
    assert best(tmp_path) == "step_000001"


def test_figures_of_different_kinds_are_not_compared(tmp_path: Path) -> None:
    save(tmp_path, 1, 2)
    rate(tmp_path, 1, 0.9, by="train/reward_mean")
    rate(tmp_path, 2, 0.1)
    assert best(tmp_path) == "step_000002"


def test_a_resumed_run_forgets_the_rating_of_a_step_that_it_takes_again(tmp_path: Path) -> None:
    save(tmp_path, 4, 8)
    rate(tmp_path, 8, 0.9)
    set_aside(tmp_path / "checkpoints", after=8)
    assert best(tmp_path) == "step_000008"
    set_aside(tmp_path / "checkpoints", after=4)
    assert best(tmp_path) is None
    rate(tmp_path, 4, 0.1)
    assert best(tmp_path) == "step_000004"


def test_a_checkpoint_of_another_folder_is_not_named(tmp_path: Path) -> None:
    rate(tmp_path, 2, 1.0)
    save(tmp_path, 3)
    rate(tmp_path, 2, 1.0)
    assert best(tmp_path) is None
    rate(tmp_path, 3, 0.5)
    assert best(tmp_path) == "step_000003"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"step": 1}', '{"step": "a", "value": 1}'])
def test_a_rating_that_cannot_be_read_is_named(tmp_path: Path, text: str) -> None:
    save(tmp_path, 1)
    path = tmp_path / "checkpoints" / "best.json"
    path.write_text(text)
    with pytest.raises(CheckpointError, match=r"best\.json cannot be read"):
        best(tmp_path)


def test_what_is_written_says_which_it_is_and_why(tmp_path: Path) -> None:
    save(tmp_path, 3)
    rate(tmp_path, 3, 0.25)
    written = json.loads((tmp_path / "checkpoints" / "best.json").read_text())
    assert written == {"step": 3, "value": 0.25, "by": "eval/pass@1"}


def test_the_best_of_a_run_that_rated_none_is_not_exported(tmp_path: Path) -> None:
    save(tmp_path, 1)
    with pytest.raises(ExportError, match="no checkpoint that was rated the best"):
        export(tmp_path, tmp_path / "out", which="best")
