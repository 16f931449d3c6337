"""The first signal asks, the second ends at once, even where the event loop hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from colocate.supervision.signals import StopSignals

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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_the_first_signal_calls_back_on_the_loop(number: signal.Signals) -> None:
    received: asyncio.Future[signal.Signals] = asyncio.get_running_loop().create_future()
    before = signal.getsignal(number)
    with StopSignals(received.set_result):
        os.kill(os.getpid(), number)
        assert await asyncio.wait_for(received, 30) == number
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(("second", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
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
