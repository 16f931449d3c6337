from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from colocate.cli.main import main


@dataclass(frozen=True)
class Outcome:
    status: int
    out: str
    err: str


@pytest.fixture
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of the test, with nothing in it."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def colocate(
    empty_folder: Path, capfd: pytest.CaptureFixture[str]
) -> Callable[[Sequence[str]], Outcome]:
    """Runs a command line in this process, in the empty folder."""

    def run(arguments: Sequence[str]) -> Outcome:
        capfd.readouterr()  # what making the folder has said is none of the command's
        try:
            status = main(arguments)
        except SystemExit as leave:  # argparse refuses unknown flags this way
            status = leave.code if isinstance(leave.code, int) else 1
        out, err = capfd.readouterr()
        return Outcome(status=status, out=out, err=err)

    return run
