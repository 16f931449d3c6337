"""The first process of a run of the sandbox.

    caller --- standard input: the spec; its end of file: the caller is gone
      ^ |
      | +--> launcher: makes the namespaces, waits
      |          |
      +--- report+--> warden: first process in there; makes the file system, watches
                          |
                          +--> program

With ``isolation="process"`` launcher and warden are one, and the file system is the machine's.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import traceback
from typing import Any

from colocate.sandbox.inside import namespaces, seccomp, syscalls, usage, view
from colocate.sandbox.inside.streams import write_all
from colocate.sandbox.inside.warden import CallerGoneError, Warden
from colocate.sandbox.inside.wire import FAULT, Fault, Spec, pack, unpack

_CALLER, _REPORT = 0, 1


def main() -> None:
    """Runs what the caller sends. Exit status 0 where a report or a fault was sent."""
    _guarded(_launch)


def _launch() -> None:
    head, (stdin, *contents) = unpack(_read_exactly)
    spec: Spec = head
    files = dict(zip(spec["files"], contents, strict=True))
    namespaces.require_kernel()
    if not seccomp.supported():
        raise namespaces.UnavailableError(
            f"the sandbox has no filter of system calls for {os.uname().machine}"
        )
    if spec["isolation"] == "process":
        _leave_root()
        _run_here(spec, stdin, files)
        return
    # Asked here, where there still is a /proc to tell.
    is_root = namespaces.is_root()
    as_root = namespaces.enter()
    owner = namespaces.NOBODY if is_root and as_root else None
    # In the user namespace whose processes are counted: the warden, and this one if it made it.
    own_tasks = 1 if as_root else 2
    warden = os.fork()
    if warden == 0:
        _guarded(_run_inside, spec, stdin, files, owner, own_tasks)
        os._exit(0)
    os.close(_REPORT)
    os.waitpid(warden, 0)


def _leave_root() -> None:
    try:
        namespaces.leave_root()
    except OSError as error:
        raise namespaces.UnavailableError(
            f"root may not become another user here ({error}), and limits on processes do not "
            "hold for root: start the run as an ordinary user"
        ) from error


def _run_inside(
    spec: Spec, stdin: bytes, files: dict[str, bytes], owner: int | None, own_tasks: int
) -> None:
    view.enter(spec["readable"], spec["limits"], owner)
    namespaces.become_nobody()
    # Becoming another user would undo it. Should the launcher have died before: so has the caller,
    # and the end of its pipe tells.
    syscalls.die_with_parent(signal.SIGKILL)
    Warden(spec, stdin, view.HOME, _CALLER, _REPORT).run(files, own_tasks)


def _run_here(spec: Spec, stdin: bytes, files: dict[str, bytes]) -> None:
    home = tempfile.mkdtemp(prefix="colocate-sandbox-")
    spec["environment"] |= {"HOME": home, "TMPDIR": home}
    try:
        own_tasks = usage.tasks_of_this_user()
        Warden(spec, stdin, home, _CALLER, _REPORT).run(files, own_tasks)
    finally:
        _remove(home)


def _remove(folder: str) -> None:
    """Removes a folder whose owner may have forbidden itself to look into parts of it."""
    for path, names, _ in os.walk(folder):
        for name in names:
            below = os.path.join(path, name)
            if not os.path.islink(below):
                os.chmod(below, 0o700)
    shutil.rmtree(folder)


def _guarded(action: Any, *arguments: Any) -> None:
    """Calls, and tells the caller of whatever goes wrong."""
    try:
        action(*arguments)
    except (CallerGoneError, EOFError, BrokenPipeError):
        os._exit(1)
    except namespaces.UnavailableError as error:
        _tell(unavailable=True, message=str(error))
    except Exception:
        _tell(unavailable=False, message=traceback.format_exc())


def _tell(*, unavailable: bool, message: str) -> None:
    write_all(_REPORT, FAULT + pack(Fault(unavailable=unavailable, message=message)))


def _read_exactly(size: int) -> bytes:
    parts = []
    while size:
        part = os.read(_CALLER, min(size, 2**20))
        if not part:
            raise EOFError
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
