"""What a test of an abuse consists of: code that tries it, and what must be true afterwards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from colocate.sandbox.limits import MIB, SandboxLimits
from colocate.sandbox.result import EndReason, SandboxResult

SECRET = "colocate-test-secret-7b1c"


@dataclass
class Outside:
    """Things outside of the sandbox that a program in it is after."""

    folder: Path
    secret_file: Path
    pid: int
    victim_pid: int
    descriptor: int
    tcp_port: int
    udp_port: int
    abstract_name: str
    socket_path: Path

    def as_code(self) -> str:
        """Definitions that come before the code of an abuse."""
        values = {
            name: str(value) if isinstance(value, Path) else value
            for name, value in vars(self).items()
        }
        return "".join(f"{name.upper()} = {value!r}\n" for name, value in values.items())


Check = Callable[[SandboxResult, Outside], None]


@dataclass(frozen=True)
class Abuse:
    """One abuse.

    Attributes:
        name: What is tried.
        code: Python that tries it; the names of ``Outside`` are defined, in capitals.
        check: Asserts what must be true of the result and of the world.
        limits: Changes to limits that no abuse but its own should meet.
        collect: Files asked for.
        stdin: Standard input.
    """

    name: str
    code: str
    check: Check
    limits: Mapping[str, float] = field(default_factory=dict)
    collect: Sequence[str] = ()
    stdin: bytes = b""

    def sandbox_limits(self) -> SandboxLimits:
        usual = {
            "wall_s": 60.0,
            "cpu_s": 60.0,
            "memory_bytes": 512 * MIB,
            "disk_bytes": 8 * MIB,
            "file_bytes": 4 * MIB,
            "files": 256,
            "processes": 16,
            "open_files": 64,
            "output_bytes": 65536,
        }
        return SandboxLimits(**{**usual, **self.limits})  # type: ignore[arg-type]


def says(*expected: str) -> Check:
    """The program ended by itself and wrote just these lines."""

    def check(result: SandboxResult, outside: Outside) -> None:
        assert result.reason is EndReason.ENDED, result.text()
        assert result.stdout.decode().splitlines() == list(expected), result.text()

    return check


def ended_by(reason: EndReason) -> Check:
    """The sandbox killed it, for this reason."""

    def check(result: SandboxResult, outside: Outside) -> None:
        assert result.reason is reason, result.text()
        assert result.signal == 9
        assert b"survived" not in result.stdout

    return check


def error_of(*attempts: str) -> str:
    """Code that makes each attempt and writes the name of the error number it fails with."""
    lines = ["import ctypes, errno, os, socket", "libc = ctypes.CDLL(None, use_errno=True)"]
    lines += [
        "def call(result):",
        "    if result < 0:",
        "        raise OSError(ctypes.get_errno(), '')",
    ]
    for attempt in attempts:
        lines += [
            "try:",
            f"    {attempt}",
            "    print('succeeded')",
            "except OSError as error:",
            "    print(errno.errorcode[error.errno])",
        ]
    return "\n".join(lines) + "\n"
