"""The first signal asks, the second ends at once, even where the event loop hangs."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from colocate.supervision.signals import STOPPING, StopSignals

# Answers "stopping" to the first signal; with "hang" the loop never comes round again.
PROGRAM = """
import asyncio, sys, time
from colocate.supervision.signals import StopSignals

async def main():
    stopping = lambda number: print("stopping", number.name, flush=True)
    with StopSignals(stopping, settle_s=float(sys.argv[2])):
        print("running", flush=True)
        if sys.argv[1] == "hang":
            while True:
                time.sleep(0.01)
        await asyncio.sleep(3600)

asyncio.run(main())
"""


@pytest.fixture(autouse=True)
def terminals_can_be_lost() -> Iterator[None]:
    """Under ``nohup`` this signal is ignored, by the tests and by all that they start."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


def start(*arguments: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    return process


@pytest.mark.parametrize("number", STOPPING)
async def test_the_first_signal_calls_back_on_the_loop(number: signal.Signals) -> None:
    received: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
    before = signal.getsignal(number)
    with StopSignals(received.set_result):
        os.kill(os.getpid(), number)
        assert await asyncio.wait_for(received, 30) == number
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(
    ("second", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_the_second_signal_exits_at_once(second: signal.Signals, status: int) -> None:
    process = start("sleep", "0")
    process.send_signal(signal.SIGTERM)
    assert process.stdout is not None
    assert process.stdout.readline() == "stopping SIGTERM\n"
    process.send_signal(second)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == status
    assert "exiting at once" in errors


def test_the_second_signal_works_where_the_loop_hangs() -> None:
    process = start("hang", "0")
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            continue
    process.communicate()
    assert process.returncode == 130


def test_a_signal_that_is_passed_on_besides_counts_once() -> None:
    process = start("sleep", "3600")
    process.send_signal(signal.SIGINT)
    assert process.stdout is not None
    assert process.stdout.readline() == "stopping SIGINT\n"
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=0.5)
    process.kill()
    process.communicate()


def test_a_run_survives_the_loss_of_its_terminal_and_is_asked_to_stop(tmp_path: Path) -> None:
    said = tmp_path / "said"
    program = f"""
import asyncio, pathlib
from colocate.supervision.signals import StopSignals

async def main():
    stop = asyncio.Event()
    with StopSignals(lambda number: stop.set()):
        print("running", flush=True)
        await stop.wait()
        print("to nobody", flush=True)
        pathlib.Path({str(said)!r}).write_text("stopped in order")

asyncio.run(main())
"""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # its controlling terminal
    )
    os.close(theirs)
    assert os.read(ours, 100).startswith(b"running")
    os.close(ours)
    assert process.wait(timeout=300) == 0
    assert said.read_text() == "stopped in order"


def test_what_was_to_be_ignored_stays_ignored() -> None:
    process = subprocess.Popen(
        ["nohup", sys.executable, "-c", PROGRAM, "sleep", "0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "running\n"
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "stopping SIGTERM\n"
    process.kill()
    process.communicate()
