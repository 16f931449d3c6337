"""The guard's orderly end: it verifies, ends what is left, and leaves this process as it was."""

from __future__ import annotations

import asyncio
import multiprocessing.resource_tracker
import os
import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from colocate.supervision.guard import RunGuard
from colocate.supervision.mark import RUN_ID_VARIABLE, Mark

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def guard_for(run_id: str, folder: Path) -> RunGuard:
    return RunGuard(run_id, f"colocate-{run_id}-", folder / f"sockets-{run_id}")


async def test_an_orderly_run_leaves_nothing_to_end(run_id: str, tmp_path: Path) -> None:
    guard = guard_for(run_id, tmp_path)
    guard.start()
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", "pass")
    assert await child.wait() == 0
    report = await guard.aclose()
    assert report.ended == ()
    assert report.surviving == ()
    assert (await guard.aclose()).ended == ()


def test_what_was_left_over_is_ended_and_reported(run_id: str, tmp_path: Path) -> None:
    guard = guard_for(run_id, tmp_path)
    guard.start()
    (tmp_path / f"sockets-{run_id}").mkdir()
    left = subprocess.Popen(SLEEP, start_new_session=True)
    report = guard.close()
    assert [process.pid for process in report.ended] == [left.pid]
    assert "time.sleep" in str(report.ended[0])
    assert left.wait(timeout=300) != 0
    assert not (tmp_path / f"sockets-{run_id}").exists()


def test_this_process_is_marked_only_while_guarded(
    run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(RUN_ID_VARIABLE, "an-outer-run")
    before = resource.getrlimit(resource.RLIMIT_RTTIME)
    mark = Mark(run_id)
    with guard_for(run_id, tmp_path):
        assert os.environ[RUN_ID_VARIABLE] == run_id
        assert mark.is_on(os.getpid())
    assert os.environ[RUN_ID_VARIABLE] == "an-outer-run"
    assert resource.getrlimit(resource.RLIMIT_RTTIME) == before
    assert not mark.is_on(os.getpid())


def test_two_runs_in_turn_do_not_end_each_others_processes(tmp_path: Path) -> None:
    with guard_for("run-number-one", tmp_path):
        pass
    bystander = subprocess.Popen(SLEEP)
    with guard_for("run-number-two", tmp_path):
        pass
    assert bystander.poll() is None
    bystander.kill()
    bystander.wait()


def test_pythons_own_resource_tracker_is_spared(
    run_id: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tracker = multiprocessing.resource_tracker.ResourceTracker()
    monkeypatch.setattr(multiprocessing.resource_tracker, "_resource_tracker", tracker)
    guard = guard_for(run_id, tmp_path)
    guard.start()
    tracker.ensure_running()
    report = guard.close()
    assert report.ended == ()
    assert psutil.pid_exists(tracker._pid)  # type: ignore[attr-defined]
    tracker._stop()  # type: ignore[attr-defined]


def test_a_reaper_that_was_killed_does_not_keep_the_guard_from_ending(
    run_id: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    guard = guard_for(run_id, tmp_path)
    guard.start()
    left = subprocess.Popen(SLEEP)
    reaper = next(
        child for child in psutil.Process().children() if f"--run-id={run_id}" in child.cmdline()
    )
    reaper.kill()
    report = guard.close()
    left.wait(timeout=300)
    assert [process.pid for process in report.ended] == [left.pid]
    assert "reaper had ended early" in caplog.text


@pytest.mark.parametrize("run_id", ["short", "has space in it", "has/slash/in/it", ""])
def test_a_run_id_that_could_hit_others_is_refused(run_id: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="run id"):
        guard_for(run_id, tmp_path)


def test_paths_without_the_run_id_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="shm_prefix"):
        RunGuard("run-number-one", "", tmp_path / "run-number-one")
    with pytest.raises(ValueError, match="socket_dir"):
        RunGuard("run-number-one", "colocate-run-number-one-", tmp_path)
