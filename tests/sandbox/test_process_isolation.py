"""The weaker mode: what it still holds. What it does not is in ``docs/security.md``."""

from __future__ import annotations

import errno
import os
import tempfile
from pathlib import Path

import pytest

from colocate.sandbox.limits import MIB, SandboxLimits
from colocate.sandbox.result import EndReason
from colocate.sandbox.run import run

pytestmark = pytest.mark.usefixtures("nothing_left")

_PYTHON = "/usr/bin/python3"
needs_system_python = pytest.mark.skipif(
    not os.access(_PYTHON, os.X_OK), reason=f"there is no {_PYTHON}"
)


async def test_outputs_files_and_status_come_back_and_the_folder_goes() -> None:
    result = await run(
        ("sh", "-c", "pwd; tr a-z A-Z < in > out; mkdir -p a/b; chmod 0 a/b a; exit 3"),
        files={"in": b"abc"},
        collect=("out",),
        isolation="process",
    )
    assert (result.status, result.files) == (3, {"out": b"ABC"})
    folder = Path(result.stdout.decode().strip())
    assert folder.name not in os.listdir(tempfile.gettempdir())
    assert folder.parent == Path(tempfile.gettempdir())


async def test_daemons_end_with_the_program_and_at_the_deadline() -> None:
    daemons = "setsid sh -c 'trap \"\" TERM HUP; sleep 600 & sleep 600' & "
    ended = await run(("sh", "-c", daemons + "sleep 0.2"), isolation="process")
    assert ended.reason is EndReason.ENDED
    late = await run(
        ("sh", "-c", daemons + "sleep 600"),
        limits=SandboxLimits(wall_s=0.5),
        isolation="process",
    )
    assert late.reason is EndReason.DEADLINE


async def test_a_flood_of_output_is_cut() -> None:
    result = await run(("yes",), limits=SandboxLimits(output_bytes=1000), isolation="process")
    assert (result.reason, len(result.stdout)) == (EndReason.OUTPUT, 1000)


@needs_system_python
async def test_there_is_no_network_and_limits_hold() -> None:
    code = (
        "import errno, socket\n"
        "try:\n"
        "    socket.socket(socket.AF_INET)\n"
        "except OSError as error:\n"
        "    print(error.errno)\n"
        "try:\n"
        "    bytearray(1 << 30)\n"
        "except MemoryError:\n"
        "    print('no memory')\n"
    )
    result = await run(
        (_PYTHON, "-c", code),
        limits=SandboxLimits(memory_bytes=256 * MIB),
        isolation="process",
    )
    assert result.stdout.decode().split("\n")[:2] == [str(errno.EAFNOSUPPORT), "no memory"]


async def test_a_fork_bomb_is_held_and_ended() -> None:
    result = await run(
        ("sh", "-c", "f() { f | f & }; f; sleep 600"),
        limits=SandboxLimits(wall_s=3, processes=20),
        isolation="process",
    )
    # By the look at how many there are; or by the kernel's limit, then the deadline or the shell.
    assert result.reason in (EndReason.PROCESSES, EndReason.DEADLINE, EndReason.ENDED)
