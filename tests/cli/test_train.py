"""What surrounds a run: Hydra's folders, the multirun's processes, signals, exit statuses."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
import yaml

from colocate.cli.train import run_job, train
from colocate.config import RunConfig
from tests.cli import job_stand_in
from tests.cli.conftest import Outcome

QUICKSTART = "+experiment=quickstart"


class Recorder:
    """Stands in for a run: keeps what it was given, returns the status it was told."""

    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.calls: list[tuple[RunConfig, Path, Path]] = []

    def __call__(self, config: RunConfig, run_dir: Path) -> int:
        self.calls.append((config, run_dir, Path.cwd()))
        return self.status


def test_a_run_gets_its_configuration_and_the_folder_that_hydra_made(empty_folder: Path) -> None:
    run = Recorder()

    assert train([QUICKSTART, "steps=7", "hydra.run.dir=here"], run=run) == 0

    [(config, run_dir, folder)] = run.calls
    assert config.steps == 7
    assert config.rollout.stop == ("\n",)
    assert run_dir == empty_folder / "here"
    assert folder == empty_folder
    saved = yaml.safe_load((run_dir / ".hydra" / "config.yaml").read_text(encoding="utf-8"))
    assert saved["steps"] == 7
    overrides = yaml.safe_load((run_dir / ".hydra" / "overrides.yaml").read_text(encoding="utf-8"))
    assert overrides == [QUICKSTART, "steps=7"]


def test_a_run_goes_to_outputs_by_default(empty_folder: Path) -> None:
    run = Recorder()

    train([QUICKSTART], run=run)

    assert run.calls[0][1].is_relative_to(empty_folder / "outputs")


def test_a_runs_status_is_the_commands_status(empty_folder: Path) -> None:
    assert train([QUICKSTART], run=Recorder(status=143)) == 143


def test_hydra_itself_prints_nothing_about_a_run(
    empty_folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train([QUICKSTART], run=Recorder())

    assert capfd.readouterr() == ("", "")


def test_a_finished_job_folder_can_be_carried_out_again_from_its_saved_configuration(
    empty_folder: Path,
) -> None:
    first, second = Recorder(), Recorder()
    train([QUICKSTART, "hydra.run.dir=here"], run=first)

    run_job(empty_folder / "here", run=second)

    assert second.calls[0][0] == first.calls[0][0]


def test_configuration_folders_of_ones_own_are_added(empty_folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own" / "experiment"
    own.mkdir(parents=True)
    (own / "short.yaml").write_text(
        "# @package _global_\ndefaults:\n  - quickstart\nsteps: 3\n", encoding="utf-8"
    )
    run = Recorder()

    train(["--config-dir", str(own.parent), "+experiment=short"], run=run)

    assert run.calls[0][0].steps == 3
    assert run.calls[0][0].model.embedded is not None


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        (["--cfg", "job", QUICKSTART, "steps=9"], "steps: 9"),
        (["--help"], "trainer: zero1, zero2, zero3"),
        (["--info", "defaults"], "scheduler"),
    ],
)
def test_asking_for_the_configuration_starts_and_writes_nothing(
    arguments: list[str], shown: str, empty_folder: Path
) -> None:
    # In a process of its own: Hydra configures logging when it is asked something.
    done = subprocess.run(
        [sys.executable, "-m", "colocate.cli.main", "train", *arguments],
        capture_output=True,
        text=True,
        check=True,
    )

    assert shown in done.stdout
    assert list(empty_folder.iterdir()) == []


def start_stand_in(arguments: Sequence[str], folder: Path) -> subprocess.Popen[str]:
    root = Path(__file__).parents[2]
    return subprocess.Popen(
        [sys.executable, job_stand_in.__file__, "train", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def multirun(arguments: Sequence[str], folder: Path) -> Outcome:
    process = start_stand_in([*arguments, "hydra.sweep.dir=sweep"], folder)
    out, err = process.communicate()
    return Outcome(status=process.returncode, out=out, err=err)


def test_a_multirun_runs_each_job_in_its_folder(empty_folder: Path) -> None:
    outcome = multirun(["-m", QUICKSTART, "seed=10,11", "trainer=zero1,zero2"], empty_folder)

    assert outcome.status == 0
    assert "All 4 jobs ended well." in outcome.err
    chosen = set()
    for number in range(4):
        text = (empty_folder / "sweep" / str(number) / ".hydra" / "config.yaml").read_text()
        config = yaml.safe_load(text)
        chosen.add((config["seed"], config["trainer"]["zero_stage"]))
    assert chosen == {(10, 1), (10, 2), (11, 1), (11, 2)}


def test_the_multirun_flag_may_stand_between_overrides(empty_folder: Path) -> None:
    outcome = multirun([QUICKSTART, "-m", "seed=10,11"], empty_folder)

    assert outcome.status == 0
    assert "[2/2] job 1 (seed=11)" in outcome.err


def test_a_failed_job_is_told_at_once_and_at_the_end_and_stops_no_other(
    empty_folder: Path,
) -> None:
    seeds = f"seed={job_stand_in.FAILS},{job_stand_in.CRASHES},10"

    outcome = multirun(["-m", QUICKSTART, seeds], empty_folder)

    assert outcome.status == 1
    first = "job 0 (seed=1) failed: exit status 1 (the reward was not a number)"
    second = "job 1 (seed=2) failed: ended by SIGKILL"
    assert outcome.err.count(first) == 2
    assert outcome.err.count(second) == 2
    assert outcome.err.index(first) < outcome.err.index("[2/3]")
    assert outcome.err.index(second) < outcome.err.index("[3/3]")
    assert "2 of 3 jobs failed:" in outcome.err


def test_what_a_job_leaves_behind_is_gone_before_the_next_begins(empty_folder: Path) -> None:
    seeds = f"seed={job_stand_in.LEAVES_A_PROCESS},{job_stand_in.FINDS_NO_OTHER}"

    outcome = multirun(["-m", QUICKSTART, seeds], empty_folder)

    assert outcome.status == 1
    assert "job 0 (seed=3) failed: it left 1 processes, which were ended" in outcome.err
    assert "job 1" not in outcome.err.partition("jobs failed:")[2]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)], ids=["INT", "TERM"]
)
def test_a_signal_reaches_the_job_and_ends_the_multirun(
    number: signal.Signals, status: int, empty_folder: Path
) -> None:
    process = start_stand_in(
        ["-m", QUICKSTART, f"seed={job_stand_in.WAITS},10", "hydra.sweep.dir=sweep"], empty_folder
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"

    process.send_signal(number)
    _, err = process.communicate(timeout=300)

    assert process.returncode == status
    assert f"{number.name}: the multirun ends; 1 jobs were not started." in err
    assert not (empty_folder / "sweep" / "1").exists()


def test_a_job_ends_when_its_multirun_is_killed(empty_folder: Path) -> None:
    process = start_stand_in(
        ["-m", QUICKSTART, f"seed={job_stand_in.WAITS},10", "hydra.sweep.dir=sweep"], empty_folder
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    [job] = psutil.Process(process.pid).children()

    process.kill()
    process.communicate(timeout=300)

    psutil.wait_procs([job], timeout=300)
    assert not job.is_running()


def test_signal_handlers_are_as_before_after_a_multirun() -> None:
    from colocate.cli.multirun import Multirun

    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    with Multirun(num_jobs=0, grace_s=0.1):
        assert signal.getsignal(signal.SIGTERM) != before[1]

    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
