"""The same multirun given again: done jobs stay, others begin anew, and nothing is overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from colocate.cli.compose import plan_jobs
from colocate.cli.earlier_jobs import find_earlier_jobs, set_aside
from colocate.cli.train import parse
from colocate.supervision.run_lock import RunLock
from tests.cli import job_stand_in
from tests.cli.test_train import QUICKSTART, multirun


def states(folder: Path) -> list[tuple[str, str | None]]:
    jobs = json.loads((folder / "sweep" / "sweep.json").read_text())["jobs"]
    return [(job["state"], job["reason"]) for job in jobs]


def test_a_multirun_given_again_does_what_is_not_done_and_only_that(empty_folder: Path) -> None:
    command = ["-m", QUICKSTART, f"seed=10,{job_stand_in.FAILS_ONCE}"]

    first = multirun(command, empty_folder)

    assert first.status == 1
    assert states(empty_folder) == [("done", None), ("failed", "exit status 1 (the first time)")]
    kept = empty_folder / "sweep" / "0" / "summary.json"
    written_ns = kept.stat().st_mtime_ns

    second = multirun(command, empty_folder)

    assert second.status == 0
    assert "[1/2] job 0 (seed=10): done before" in second.err
    assert "All 2 jobs ended well; 1 had before." in second.err
    assert "colocate report sweep" in second.err
    assert kept.stat().st_mtime_ns == written_ns
    assert states(empty_folder) == [("done", None), ("done", None)]
    old = empty_folder / "sweep" / "superseded" / "1-0" / "summary.json"
    assert json.loads(old.read_text())["error"] == "the first time"


def test_a_folder_of_another_configuration_is_refused_with_what_differs(
    empty_folder: Path,
) -> None:
    assert multirun(["-m", QUICKSTART, "seed=10,11"], empty_folder).status == 0

    other = multirun(["-m", QUICKSTART, "seed=10,11", "steps=7"], empty_folder)

    assert other.status == 2
    assert "they differ in steps" in other.err
    assert "hydra.sweep.dir=PATH" in other.err
    assert states(empty_folder) == [("done", None), ("done", None)]


@pytest.fixture
def left_by_a_try(empty_folder: Path) -> Path:
    """The folder of job 0 of a sweep that was broken off."""
    assert multirun(["-m", QUICKSTART, "seed=10,11"], empty_folder).status == 0
    folder = empty_folder / "sweep" / "0"
    (folder / "summary.json").unlink()
    (folder / "events.jsonl").touch()
    return folder


def test_how_a_run_is_gone_on_with_is_no_other_configuration(left_by_a_try: Path) -> None:
    arguments = ["-m", QUICKSTART, "seed=10,11", "hydra.sweep.dir=sweep", "resume=auto"]
    earlier = find_earlier_jobs(plan_jobs(parse(arguments)).jobs)
    assert (earlier.unfinished, earlier.done, earlier.problems) == ({0}, {1}, ())


def test_a_job_that_still_runs_is_left_alone(left_by_a_try: Path) -> None:
    arguments = ["-m", QUICKSTART, "seed=10,11", "hydra.sweep.dir=sweep"]
    with RunLock(left_by_a_try):
        (problem,) = find_earlier_jobs(plan_jobs(parse(arguments)).jobs).problems
    assert "in use by another run" in problem.rule


def test_tries_that_are_set_aside_are_numbered(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / "3").mkdir()
        assert set_aside(tmp_path / "3") == tmp_path / "superseded" / f"3-{number}"


def test_the_study_of_staleness_needs_no_more_than_its_name(empty_folder: Path) -> None:
    plan = plan_jobs(parse(["-m", "+experiment=staleness", "device=cpu"]))
    assert len(plan.jobs) == 24
    found = {
        (
            job.tree["buffer"]["max_staleness"],
            job.tree["scheduler"]["swap_interval"],
            job.tree["algorithm"]["correction"]["mode"],
            job.tree["seed"],
        )
        for job in plan.jobs
    }
    assert found == {
        (bound, bound + 1, mode, seed)
        for bound in (0, 1, 3, 7)
        for mode in ("none", "truncate")
        for seed in (0, 1, 2)
    }
    assert all(job.tree["steps"] % (bound + 1) == 0 for job in plan.jobs for bound in (0, 1, 3, 7))


def test_a_command_line_changes_the_studys_grid(empty_folder: Path) -> None:
    arguments = ["-m", "+experiment=staleness", "seed=5", "buffer.max_staleness=0,2"]
    plan = plan_jobs(parse(arguments))
    assert len(plan.jobs) == 4
    assert {job.tree["seed"] for job in plan.jobs} == {5}
