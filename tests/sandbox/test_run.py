"""What a caller gets from a run, and what becomes of a run whose caller goes."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from colocate.sandbox.limits import SandboxLimits
from colocate.sandbox.result import EndReason, SandboxUnavailableError
from colocate.sandbox.run import check, run, run_python
from tests.patience import patient

pytestmark = pytest.mark.usefixtures("namespaces_allowed", "nothing_left")


async def test_outputs_and_exit_status_come_back() -> None:
    result = await run(("sh", "-c", "echo out; echo err >&2; exit 3"))
    assert (result.reason, result.status, result.signal) == (EndReason.ENDED, 3, None)
    assert (result.stdout, result.stderr) == (b"out\n", b"err\n")
    assert not result.succeeded
    assert result.text() == "out\n\nerr\n\n[exit status 3]"
    assert 0 < result.wall_s < patient(10)


async def test_a_signal_comes_back() -> None:
    result = await run(("sh", "-c", "kill -USR1 $$"))
    assert (result.reason, result.status, result.signal) == (EndReason.ENDED, None, signal.SIGUSR1)


async def test_standard_input_reaches_the_program_whole() -> None:
    content = os.urandom(3 << 20)
    limits = SandboxLimits(output_bytes=4 << 20)
    assert (await run(("cat",), stdin=content, limits=limits)).stdout == content


async def test_files_go_in_and_come_out() -> None:
    result = await run(
        ("sh", "-c", "mkdir -p new && tr a-z A-Z < given/in.txt > new/out.txt"),
        files={"given/in.txt": b"abc"},
        collect=("new/out.txt", "none.txt"),
    )
    assert result.files == {"new/out.txt": b"ABC"}
    assert result.missing == {"none.txt": "No such file or directory"}


async def test_only_the_environment_that_is_given_is_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLOCATE_TEST_VARIABLE", "inherited")
    result = await run(("env",), environment={"GIVEN": "yes"})
    names = {line.split("=")[0] for line in result.stdout.decode().splitlines()}
    assert names == {"GIVEN", "HOME", "LANG", "PATH", "TMPDIR"}


async def test_packages_of_this_interpreter_can_be_imported() -> None:
    result = await run_python("import psutil; print(psutil.__version__)")
    assert result.succeeded, result.text()


async def test_a_program_that_is_not_there_is_told_from_one_that_fails() -> None:
    result = await run(("no-such-program",))
    assert result.reason is EndReason.NOT_STARTED
    assert b"cannot run no-such-program" in result.stderr
    assert (await run(("sh", "-c", "exit 127"))).reason is EndReason.ENDED


async def test_a_folder_that_is_named_can_be_read_and_not_written(tmp_path: Path) -> None:
    (tmp_path / "data.txt").write_text("given")
    os.chmod(tmp_path, 0o755)
    os.chmod(tmp_path / "data.txt", 0o666)
    script = f"cat {tmp_path}/data.txt; echo x > {tmp_path}/data.txt"
    result = await run(("sh", "-c", script), readable=(tmp_path,))
    assert result.stdout == b"given"
    assert b"Read-only file system" in result.stderr
    assert (tmp_path / "data.txt").read_text() == "given"


async def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SandboxUnavailableError, match="nowhere"):
        await run(("true",), readable=(tmp_path / "nowhere",))


@pytest.mark.parametrize("name", ["/etc/x", "../x", "a/../../x", "a//b", "."])
async def test_files_outside_of_the_home_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="below the program's home"):
        await run(("true",), files={name: b""})
    with pytest.raises(ValueError, match="below the program's home"):
        await run(("true",), collect=(name,))


@pytest.mark.parametrize("path", ["/", "/proc", "/home", "relative", "/tmp/../proc"])
async def test_folders_that_would_undo_the_sandbox_are_refused(path: str) -> None:
    with pytest.raises(ValueError, match="cannot be shown"):
        await run(("true",), readable=(Path(path),))


def test_limits_must_be_positive() -> None:
    with pytest.raises(ValueError, match=r"wall_s is 0.*processes is -1"):
        SandboxLimits(wall_s=0, processes=-1)


async def test_processor_time_and_memory_are_measured_over_all_processes() -> None:
    result = await run_python(
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    while time.process_time() < 0.3:\n"
        "        pass\n"
        "    os._exit(0)\n"
        "x = b'x' * (40 << 20)\n"
        "time.sleep(0.5)\n"
        "os.wait()",
        limits=SandboxLimits(wall_s=60, cpu_s=60),
    )
    assert result.succeeded, result.text()
    assert 0.3 <= result.cpu_s < 20
    assert 40 << 20 <= result.peak_memory_bytes < 200 << 20


async def test_runs_side_by_side_do_not_see_or_limit_each_other() -> None:
    script = (
        "sleep 600 & sleep 600 & echo $0 > mine; sleep 0.3; set -- /proc/[0-9]*; echo $#; cat mine"
    )
    runs = [
        run(("sh", "-c", script, str(number)), limits=SandboxLimits(wall_s=60, processes=6))
        for number in range(6)
    ]
    for number, result in enumerate(await asyncio.gather(*runs)):
        # Warden, shell and two sleeps.
        assert result.stdout.decode().split() == ["4", str(number)], result.text()


async def test_the_event_loop_goes_on_meanwhile() -> None:
    ticks = 0
    task = asyncio.ensure_future(run(("sleep", "1")))
    while not task.done():
        await asyncio.sleep(0.01)
        ticks += 1
    assert (await task).succeeded
    assert ticks > 20


@pytest.mark.parametrize("delay_s", [0.0, 0.01, 0.1, 1.0])
async def test_a_cancelled_run_leaves_nothing(delay_s: float) -> None:
    limits = SandboxLimits(wall_s=600)
    task = asyncio.ensure_future(run(("sh", "-c", "setsid sleep 600 & sleep 600"), limits=limits))
    await asyncio.sleep(patient(delay_s) if delay_s == 1.0 else delay_s)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


_CALLER = """
import asyncio
from colocate.sandbox.run import run
from colocate.sandbox.limits import SandboxLimits
limits = SandboxLimits(wall_s=600, output_bytes=1)
asyncio.run(run(("sh", "-c", "setsid sleep 600 & sleep 600"), limits=limits))
"""


async def test_a_run_whose_caller_is_killed_ends() -> None:
    # The check that nothing is left is that of ``nothing_left``.
    caller = await asyncio.create_subprocess_exec(sys.executable, "-c", _CALLER)
    deadline_s = time.monotonic() + patient(20)
    while _sleepers() < 2:
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.05)
    caller.kill()
    await caller.wait()


def _sleepers() -> int:
    listing = subprocess.run(["ps", "-e", "-o", "args"], capture_output=True, text=True).stdout
    return listing.splitlines().count("sleep 600")


_FORBIDDEN = """
import asyncio, ctypes, os
from colocate.sandbox.run import check, run
from colocate.sandbox.result import SandboxUnavailableError
user = os.geteuid()
ctypes.CDLL(None).unshare(0x10000000)
open("/proc/self/uid_map", "w").write(f"4321 {user} 1")
open("/proc/sys/user/max_user_namespaces", "w").write("0")
try:
    asyncio.run(check())
except SandboxUnavailableError as error:
    print(error)
print(asyncio.run(run(("echo", "weaker"), isolation="process")).text())
"""


async def test_without_user_namespaces_nothing_runs_unless_the_weaker_mode_is_asked_for() -> None:
    caller = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _FORBIDDEN, stdout=asyncio.subprocess.PIPE
    )
    output = (await caller.communicate())[0].decode().splitlines()
    assert "not allowed here" in output[0]
    assert "sysctl -w user.max_user_namespaces=10000" in output[0]
    assert output[1] == "weaker"


async def test_a_machine_that_allows_it_passes_the_check() -> None:
    await check()
