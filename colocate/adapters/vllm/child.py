"""What an engine process does before it is anything else. Standard library only.

``spawn.engine_spawning`` makes ``multiprocessing`` start this file as a script in place of the
interpreter. It sends the process's output to the log, ties its life to its parent's, and then
becomes the interpreter that was asked for; both properties survive ``exec``, so that neither an
import's warning nor a death during the seconds of importing slips through.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

RUN_ID = "COLOCATE_RUN_ID"
DRIVER_PID = "COLOCATE_ENGINE_DRIVER_PID"
"""The process that started the engine. Seen by every process of the engine, however deep."""

LOG_FILE = "COLOCATE_ENGINE_LOG"

_PR_SET_PDEATHSIG = 1


def die_with_parent(parent_pid: int) -> None:
    """Has the kernel kill this process when the thread that started it ends. Linux only.

    A parent that is gone already would never be noticed, so this then ends the process at once.

    Raises:
        OSError: where the kernel refuses.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"prctl(PR_SET_PDEATHSIG): {os.strerror(error)}")
    if os.getppid() != parent_pid:
        os.kill(os.getpid(), signal.SIGKILL)


def become_interpreter() -> None:
    """Takes on log, leash and process group, then becomes ``python`` with the same arguments."""
    log = os.open(os.environ[LOG_FILE], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    # A terminal sends Ctrl-C to its whole foreground group, but only the driver is to answer it:
    # an engine that left on its own would take the orderly end of the run with it.
    os.setpgid(0, 0)
    die_with_parent(int(os.environ[DRIVER_PID]))
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])


if __name__ == "__main__":
    become_interpreter()
