"""A driver in a process of its own, with descendants that try to get away."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from tests.processes import runs

# Says its pid and waits; argv[1] tells how it tries to get away.
CHILD = """
import os, signal, subprocess, sys, time
kind = sys.argv[1]
if kind == "deaf":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if kind == "renamed":
    import setproctitle
    setproctitle.setproctitle("VLLM::EngineCore")
if kind == "parent":
    subprocess.Popen([sys.executable, "-c", sys.argv[2], "plain"], start_new_session=True)
os.write(1, f"{os.getpid()}\\n".encode())
while True:
    time.sleep(60)
"""

# argv: run id, folder of sockets, code of the child, how the driver ends the guard's scope.
DRIVER = """
import asyncio, os, signal, subprocess, sys, time
from pathlib import Path
from colocate.supervision.guard import RunGuard
from colocate.supervision.signals import StopSignals

run_id, socket_dir, child = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
# Whoever started the tests may ignore it (nohup), and that is inherited.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

async def main():
    stopped = asyncio.Event()
    guard = RunGuard(run_id, f"colocate-{run_id}-", socket_dir)
    with StopSignals(lambda number: stopped.set()), guard:
        socket_dir.mkdir()
        Path(f"/dev/shm/colocate-{run_id}-bucket").write_bytes(b"weights")
        for kind in ("plain", "deaf", "renamed", "parent"):
            subprocess.Popen([sys.executable, "-c", child, kind, child],
                             start_new_session=kind == "plain")
        forked = os.fork()
        if forked == 0:
            os.setsid()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            os.write(1, f"{os.getpid()}\\n".encode())
            while True:
                time.sleep(60)
        await stopped.wait()

asyncio.run(main())
"""

NUM_DESCENDANTS = 6


@dataclass
class Driver:
    run_id: str
    process: subprocess.Popen[str]
    socket_dir: Path
    descendants: list[psutil.Process] = field(default_factory=list)

    @property
    def shared_memory(self) -> list[Path]:
        return [path for path in Path("/dev/shm").iterdir() if self.run_id in path.name]

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def still_alive(
        self, processes: list[psutil.Process] | None = None, within_s: float = 100.0
    ) -> list[psutil.Process]:
        """Those of the given processes (the run's) that still run when the time is over."""
        watched = self.descendants if processes is None else processes
        deadline_s = time.monotonic() + within_s
        while alive := [p for p in watched if runs(p)]:
            if time.monotonic() > deadline_s:
                break
            psutil.wait_procs(alive, timeout=0.05)
        return alive

    def reaper(self) -> psutil.Process:
        children = psutil.Process(self.process.pid).children()
        return next(c for c in children if "colocate.supervision.reaper" in c.cmdline())


@pytest.fixture
def run_id() -> str:
    return f"test-{uuid.uuid4().hex[:12]}"


@pytest.fixture
def driver(run_id: str, tmp_path: Path) -> Iterator[Driver]:
    socket_dir = tmp_path / f"sockets-{run_id}"
    process = subprocess.Popen(
        [sys.executable, "-c", DRIVER, run_id, str(socket_dir), CHILD],
        # The loader moves this variable elsewhere, and setproctitle wipes up to the gap only.
        env={key: value for key, value in os.environ.items() if key != "GLIBC_TUNABLES"},
        stdout=subprocess.PIPE,
        text=True,
    )
    one = Driver(run_id, process, socket_dir)
    try:
        assert process.stdout is not None
        for _ in range(NUM_DESCENDANTS):
            one.descendants.append(psutil.Process(int(process.stdout.readline())))
        yield one
    finally:
        for descendant in one.descendants:
            if descendant.is_running():
                descendant.kill()
        if process.poll() is None:
            process.kill()
        process.communicate()
