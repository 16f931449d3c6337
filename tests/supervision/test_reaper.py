"""Whatever ends the driver, the run's processes are gone within ten seconds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from colocate.supervision.mark import RUN_ID_VARIABLE
from tests.processes import running

if TYPE_CHECKING:
    from tests.supervision.conftest import Driver


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_nothing_of_a_run_outlives_its_driver(driver: Driver, number: signal.Signals) -> None:
    reaper = driver.reaper()
    driver.signal(number)
    assert driver.still_alive() == []
    assert driver.still_alive([reaper]) == []
    assert driver.shared_memory == []
    assert not driver.socket_dir.exists()


# argv: run id, folder of sockets. A child that is slow to end uses the driver's semaphore.
SHARING_DRIVER = """
import multiprocessing, signal, sys, time
from pathlib import Path
from colocate.supervision.guard import RunGuard

def linger(semaphore):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    print("lingering", flush=True)
    while True:
        time.sleep(60)

if __name__ == "__main__":
    with RunGuard(sys.argv[1], f"colocate-{sys.argv[1]}-", Path(sys.argv[2])):
        context = multiprocessing.get_context("spawn")
        semaphore = context.Semaphore()
        print(semaphore._semlock.name, flush=True)
        context.Process(target=linger, args=(semaphore,)).start()
        while True:
            time.sleep(60)
"""


def test_semaphores_that_a_killed_driver_shared_are_unlinked(run_id: str, tmp_path: Path) -> None:
    script = tmp_path / "driver.py"
    script.write_text(SHARING_DRIVER)
    driver = subprocess.Popen(
        [sys.executable, str(script), run_id, str(tmp_path / f"sockets-{run_id}")],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert driver.stdout is not None
    semaphore = Path(f"/dev/shm/sem.{driver.stdout.readline().strip().lstrip('/')}")
    assert driver.stdout.readline() == "lingering\n"
    assert semaphore.exists()
    descendants = psutil.Process(driver.pid).children(recursive=True)
    driver.kill()
    driver.communicate()
    assert running(descendants, 100) == []
    assert not semaphore.exists()


def test_the_reaper_survives_what_ends_a_driver(driver: Driver) -> None:
    reaper = driver.reaper()
    assert os.getsid(reaper.pid) == reaper.pid
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        reaper.send_signal(number)
    driver.signal(signal.SIGKILL)
    assert driver.still_alive() == []


def test_strangers_are_left_alone(driver: Driver) -> None:
    sleep = [sys.executable, "-c", "import time; time.sleep(60)"]
    environments = [
        {},
        {RUN_ID_VARIABLE: "test-another-run"},
        {RUN_ID_VARIABLE: driver.run_id + "0"},
        {"OTHER": f"{RUN_ID_VARIABLE}={driver.run_id}"},
    ]
    strangers = [
        subprocess.Popen(sleep, env={**os.environ, **environment}) for environment in environments
    ]
    foreign_file = Path(f"/dev/shm/stranger-colocate-{driver.run_id}-")
    foreign_file.write_bytes(b"")
    try:
        driver.signal(signal.SIGKILL)
        assert driver.still_alive() == []
        assert [stranger.poll() for stranger in strangers] == [None] * len(strangers)
        assert foreign_file.exists()
    finally:
        foreign_file.unlink()
        for stranger in strangers:
            stranger.kill()
            stranger.wait()


def test_a_process_that_wiped_its_environment_is_still_known(driver: Driver) -> None:
    renamed = [p for p in driver.descendants if p.cmdline()[0] == "VLLM::EngineCore"]
    assert len(renamed) == 1
    assert b"COLOCATE_RUN_ID" not in Path(f"/proc/{renamed[0].pid}/environ").read_bytes()
    driver.signal(signal.SIGKILL)
    assert driver.still_alive(renamed) == []


def test_a_reaper_without_the_runs_marks_says_so(run_id: str, tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != RUN_ID_VARIABLE}
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "colocate.supervision.reaper",
            f"--run-id={run_id}",
            f"--driver-pid={psutil.Process().pid}",
            f"--shm-prefix=colocate-{run_id}-",
            f"--socket-dir={tmp_path / run_id}",
        ],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 1
    assert "not inherited" in result.stdout
