"""The one way to run a program that a model wrote."""

from __future__ import annotations

import asyncio
import contextlib
import io
import os
import posixpath
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal

import psutil

import colocate
from colocate.sandbox.inside.wire import FAULT, STARTED, Fault, Report, Spec, pack, unpack
from colocate.sandbox.limits import SandboxLimits
from colocate.sandbox.result import (
    EndReason,
    SandboxFailedError,
    SandboxResult,
    SandboxUnavailableError,
)

Isolation = Literal["namespaces", "process"]

HOME = "/home/sandbox"
_ENVIRONMENT = {
    "HOME": HOME,
    "LANG": "C.UTF-8",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "TMPDIR": "/tmp",
}
_BOOT = (
    "import sys; sys.path.append(sys.argv[1]); "
    "from colocate.sandbox.inside.launcher import main; main()"
)
_START_S = 120.0
_GRACE_S = 10.0
_DISMISSAL_S = 5.0
_TAKEN = ("/dev", "/etc", "/home/sandbox", "/proc", "/tmp", "/gone", "/store")


async def run(
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    limits: SandboxLimits | None = None,
    files: Mapping[str, bytes] | None = None,
    collect: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    readable: Sequence[Path] = (),
    isolation: Isolation = "namespaces",
) -> SandboxResult:
    """Runs one program in a sandbox of its own, which is gone when this returns or is cancelled.

    Args:
        argv: Program and arguments; searched for in the system's folders.
        stdin: Its standard input.
        limits: What it may use; default ``SandboxLimits()``.
        files: To write into its home, which is its working directory, before it starts: by
            relative path.
        collect: Files to take from its home afterwards, by relative path; together at most
            ``disk_bytes``.
        environment: Variables besides ``HOME``, ``LANG``, ``PATH`` and ``TMPDIR``. None is
            inherited.
        readable: Further folders and files it may read, at their own paths. This interpreter's
            folders are always readable.
        isolation: ``process`` gives up most of what ``docs/security.md`` promises, for machines
            without user namespaces. It is never chosen on its own.

    Raises:
        SandboxUnavailableError: this machine cannot contain a program so. Nothing was run.
        SandboxFailedError: a fault of the sandbox.
        ValueError: a path that is absolute where it must be relative, or the reverse.
    """
    limits = limits or SandboxLimits()
    files = files or {}
    for name in (*files, *collect):
        plain = posixpath.normpath(name) == name and name.split("/")[0] not in (".", "..")
        if posixpath.isabs(name) or not plain:
            raise ValueError(f"{name!r} must be a plain path below the program's home")
    spec = Spec(
        argv=list(argv),
        environment=_ENVIRONMENT | dict(environment or {}),
        limits=asdict(limits),  # type: ignore[typeddict-item]
        files=list(files),
        collect=list(collect),
        readable=[*_interpreter_folders(), *map(_checked, readable)],
        isolation=isolation,
    )
    request = pack(spec, [stdin, *files.values()])
    start = asyncio.ensure_future(_start())
    try:
        launcher = await asyncio.shield(start)
    except asyncio.CancelledError:
        await _dismiss(await start)
        raise
    try:
        return await _converse(launcher, request, limits)
    finally:
        await asyncio.shield(asyncio.ensure_future(_dismiss(launcher)))


async def run_python(
    code: str, *, files: Mapping[str, bytes] | None = None, **options: Any
) -> SandboxResult:
    """Runs Python code as ``main.py`` in its home, with this interpreter and its packages.

    Args:
        code: The source text.
        files: As for ``run``.
        **options: As for ``run``.
    """
    return await run(
        (sys.executable, "main.py"), files={**(files or {}), "main.py": code.encode()}, **options
    )


async def check(isolation: Isolation = "namespaces") -> None:
    """
    Raises:
        SandboxUnavailableError: this machine cannot contain a program; the message says why.
    """
    await run(("true",), isolation=isolation)


def _interpreter_folders() -> list[str]:
    """Where this interpreter and its packages lie, by the names it uses and by the real ones."""
    named = (sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)
    real = [os.path.realpath(path) for path in named]
    system = ("/", "/usr")
    return [path for path in dict.fromkeys((*named, *real)) if path not in system]


def _checked(path: Path) -> str:
    text = posixpath.normpath(path)
    for taken in _TAKEN:
        if not path.is_absolute() or posixpath.commonpath((text, taken)) == text:
            raise ValueError(f"{path} cannot be shown in the sandbox: {taken} is its own there")
    return text


async def _start() -> asyncio.subprocess.Process:
    root = str(Path(colocate.__file__).parents[1])
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-I", "-S", "-B", "-c", _BOOT, root),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={},
        cwd="/",
        start_new_session=True,
    )


async def _converse(
    launcher: asyncio.subprocess.Process, request: bytes, limits: SandboxLimits
) -> SandboxResult:
    """Sends what to run and awaits the report; a warden that is late is given up."""
    assert launcher.stdin is not None
    assert launcher.stdout is not None
    began_s = asyncio.get_running_loop().time()
    try:
        async with asyncio.timeout(_START_S):
            # A launcher that ends early has said why on its output.
            with contextlib.suppress(ConnectionError):
                launcher.stdin.write(request)
                await launcher.stdin.drain()
            sign = await launcher.stdout.readexactly(len(STARTED))
        async with asyncio.timeout(limits.wall_s + _GRACE_S):
            answer = await launcher.stdout.read()
        head, blobs = unpack(_reader(answer))
    except (asyncio.IncompleteReadError, EOFError) as error:
        raise SandboxFailedError(
            "the sandbox's processes ended without a report: killed from outside, perhaps for "
            "want of memory"
        ) from error
    except TimeoutError:
        wall_s = asyncio.get_running_loop().time() - began_s
        if wall_s < limits.wall_s:
            raise SandboxFailedError(f"the sandbox did not start in {wall_s:.0f} s") from None
        return SandboxResult(
            reason=EndReason.DEADLINE, status=None, signal=9, wall_s=wall_s, cpu_s=0.0
        )
    if sign == FAULT:
        raise _error(head)
    return _result(head, blobs)


def _reader(content: bytes) -> Callable[[int], bytes]:
    stream = io.BytesIO(content)

    def read_exactly(size: int) -> bytes:
        part = stream.read(size)
        if len(part) < size:
            raise EOFError
        return part

    return read_exactly


def _error(fault: Fault) -> Exception:
    if fault["unavailable"]:
        return SandboxUnavailableError(fault["message"])
    return SandboxFailedError(fault["message"])


def _result(report: Report, blobs: Sequence[bytes]) -> SandboxResult:
    stdout, stderr, *contents = blobs
    status = report["wait_status"]
    killed = os.WIFSIGNALED(status)
    return SandboxResult(
        reason=EndReason(report["reason"]),
        status=None if killed else os.WEXITSTATUS(status),
        signal=os.WTERMSIG(status) if killed else None,
        stdout=stdout,
        stderr=stderr,
        stdout_cut=report["stdout_cut"],
        stderr_cut=report["stderr_cut"],
        wall_s=report["wall_s"],
        cpu_s=report["cpu_s"],
        peak_memory_bytes=report["peak_memory_bytes"],
        files=dict(zip(report["files"], contents, strict=True)),
        missing=report["missing"],
    )


async def _dismiss(launcher: asyncio.subprocess.Process) -> None:
    """Sees the sandbox's processes to their end. Its input's end tells them to go at once."""
    assert launcher.stdin is not None
    launcher.stdin.close()
    try:
        async with asyncio.timeout(_DISMISSAL_S):
            await launcher.wait()
    except TimeoutError:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in reversed(psutil.Process(launcher.pid).children(recursive=True)):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        with contextlib.suppress(ProcessLookupError):
            launcher.kill()
        await launcher.wait()
