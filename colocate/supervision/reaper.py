"""A process that outlives the driver by seconds, to end whatever of the run outlives it.

    driver --(pipe: standard input)--> reaper
       "quit" and end of file: the driver has swept the run itself; the reaper goes.
       end of file alone, or the reaper's parent has changed: the driver is gone. It sweeps.

The kernel closes the pipe however the driver dies, unless a forked child holds a copy of it: then
the change of parent tells. The reaper has a session of its own and ignores the signals that end a
driver, so that a Ctrl-C or a closed terminal does not take it along.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import sys
import time
from pathlib import Path

from colocate.supervision.mark import Mark
from colocate.supervision.sweep import Remains, sweep

READY = "ready"
QUIT = b"quit"
_PARENT_CHECK_S = 0.25
_REPARENTING_S = 1.0


def main() -> int:
    parser = argparse.ArgumentParser(prog="colocate.supervision.reaper")
    parser.add_argument("--run-id", required=True)
    parser.add_argument("--driver-pid", type=int, required=True)
    parser.add_argument("--shm-prefix", required=True)
    parser.add_argument("--socket-dir", type=Path, required=True)
    arguments = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    remains = Remains(Mark(arguments.run_id), arguments.shm_prefix, arguments.socket_dir)
    if not remains.mark.is_on(os.getpid()):
        print("the run's marks are not inherited on this machine", flush=True)
        return 1
    print(READY, flush=True)
    if _await_end(arguments.driver_pid):
        return 0
    report = sweep(remains.mark, spare=_spared(arguments.driver_pid), patience_s=0.0)
    remains.remove_files()
    for process in report.surviving:
        print(f"process {process} of run {arguments.run_id} could not be ended", file=sys.stderr)
    return 1 if report.surviving else 0


def _await_end(driver_pid: int) -> bool:
    """Blocks until the driver closes the run or is gone; whether it closed the run itself."""
    pipe = sys.stdin.fileno()
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while os.getppid() == driver_pid:
        if poll.poll(_PARENT_CHECK_S * 1000):
            return os.read(pipe, len(QUIT)) == QUIT
    return False


def _spared(driver_pid: int) -> set[int]:
    """The reaper itself, and the driver where it lives on after closing the pipe.

    A dying process closes its files a moment before its children get another parent.
    """
    deadline_s = time.monotonic() + _REPARENTING_S
    while os.getppid() == driver_pid:
        if time.monotonic() > deadline_s:
            return {os.getpid(), driver_pid}
        time.sleep(0.01)
    return {os.getpid()}


if __name__ == "__main__":
    sys.exit(main())
