"""One run under a schedule of faults, over as many lives as it takes."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from colocate.report.records import read_metrics
from tools.chaos_run.schedule import Fault
from tools.run_processes import processes_of, run_id_of

POLL_S = 0.5
DRIVER_STOPPED_S = 8.0
LIFE_DEADLINE_S = 3600.0

BY_ITSELF = (0, 1, 2)
"""Exit statuses of a driver that no fault has ended."""

SMALL = (
    "+experiment=quickstart",
    "algorithm.group_size=8",
    "algorithm.groups_per_step=4",
    "inference.kv_cache_memory_bytes=67108864",
    "memory.budget_bytes=null",
    "inference.sleep=2",
    "checkpoint.every_steps=2",
    "logger.display=off",
    # A process that is stopped is found by these.
    "supervision.start_timeout_s=180",
    "supervision.phase_timeout_s=60",
    "supervision.training_timeout_s=60",
    "supervision.idle_timeout_s=60",
    "supervision.max_restarts=20",
)


class Ordeal:
    """``seen`` and ``run_ids``: processes and marks of all lives; ``struck``: faults that hit."""

    def __init__(self, run_dir: Path, steps: int, overrides: Sequence[str]) -> None:
        self.run_dir = run_dir
        self.seen: set[psutil.Process] = set()
        self.run_ids: set[str] = set()
        self.struck: list[Fault] = []
        self.num_lives = 0
        self._overrides = [*SMALL, f"steps={steps}", f"hydra.run.dir={run_dir}", *overrides]
        self._driver: psutil.Popen | None = None

    def endure(self, schedule: Sequence[Fault]) -> int:
        """Runs to the end of the last life; returns its exit status.

        Raises:
            TimeoutError: the run did not get on; nothing of it is left.
        """
        try:
            for fault in schedule:
                self._go_on_until(fault)
                if self._is_over():
                    break
                self._strike(fault)
            return self._finish()
        finally:
            if self._driver is not None and self._driver.poll() is None:
                self._driver.kill()  # its reaper ends the rest

    # Lives

    def _begin_life(self) -> None:
        resume = "auto" if self.num_lives else "never"
        self.num_lives += 1
        command = [sys.executable, "-m", "colocate.cli.main", "train", *self._overrides]
        self._driver = psutil.Popen([*command, f"resume={resume}"])

    def _is_over(self) -> bool:
        """By itself, well or not."""
        return self._driver is not None and self._driver.poll() in BY_ITSELF

    def _keep_alive(self) -> None:
        """A driver that a fault has ended is started again; one that failed by itself is not."""
        if self._driver is None:
            self._begin_life()
            return
        status = self._driver.poll()
        if status is not None and status not in BY_ITSELF:
            print(f"the driver is gone with {status}, and is started again", flush=True)
            self._begin_life()
        self._look()

    def _look(self) -> None:
        assert self._driver is not None
        if run_id := run_id_of(self._driver):
            self.run_ids.add(run_id)
        for processes in processes_of(self._driver).values():
            self.seen.update(processes)

    def _go_on_until(self, fault: Fault) -> None:
        due_s = time.monotonic() + LIFE_DEADLINE_S
        while self._num_steps() < fault.after_step or not self._victims(fault):
            self._keep_alive()
            if self._is_over():
                return
            if time.monotonic() > due_s:
                raise TimeoutError(f"{fault}: the run did not come so far")
            time.sleep(POLL_S)
        time.sleep(fault.delay_s)

    def _finish(self) -> int:
        due_s = time.monotonic() + LIFE_DEADLINE_S
        self._keep_alive()
        while True:
            assert self._driver is not None
            status = self._driver.poll()
            if status in BY_ITSELF:
                return status
            self._keep_alive()
            if time.monotonic() > due_s:
                raise TimeoutError("the run did not come to its end")
            time.sleep(POLL_S)

    def _num_steps(self) -> int:
        metrics = self.run_dir / "metrics.jsonl"
        rows = read_metrics(metrics) if metrics.exists() else []
        return max((int(row["step"]) for row in rows), default=0)

    # Faults

    def _victims(self, fault: Fault) -> list[psutil.Process]:
        if self._driver is None or self._driver.poll() is not None:
            return []
        return processes_of(self._driver).get(fault.target, [])

    def _strike(self, fault: Fault) -> None:
        self._look()
        victims = self._victims(fault)
        print(f"now: {fault}: {[process.pid for process in victims]}", flush=True)
        num_hit = 0
        for process in victims:
            with suppress(psutil.NoSuchProcess):
                process.send_signal(fault.number)
                num_hit += 1
        if not num_hit:
            return
        self.struck.append(fault)
        if fault.target == "driver" and fault.number.name == "SIGSTOP":
            time.sleep(DRIVER_STOPPED_S)
            for process in victims:
                process.resume()
