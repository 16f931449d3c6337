"""How a program in the sandbox ended, and what it left."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field


class EndReason(enum.Enum):
    """What ended a run. All but the first two mean that the sandbox killed it."""

    ENDED = "ended"
    """By itself: with a status, or by a signal, be it one of its own or a limit's."""
    NOT_STARTED = "not_started"
    """The program could not be executed; standard error says why."""
    DEADLINE = "deadline"
    CPU = "cpu"
    MEMORY = "memory"
    OUTPUT = "output"
    PROCESSES = "processes"
    """Only with ``isolation="process"``; elsewhere a further process fails with EAGAIN."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResult:
    """One run.

    Attributes:
        reason: What ended it.
        status: Exit status of the program; ``None`` where a signal ended it.
        signal: Number of the signal that ended it; ``None`` where it exited.
        stdout: Standard output, cut at ``output_bytes``.
        stderr: Standard error, likewise.
        stdout_cut: Whether there was more.
        stderr_cut: Whether there was more.
        wall_s: From the program's start to its end, in seconds.
        cpu_s: Processor time of all its processes, in seconds.
        peak_memory_bytes: The most resident memory seen at a look; 0 where it ended before one.
        files: What was asked for and was there, by name.
        missing: What was asked for and was not handed over: name to reason.
    """

    reason: EndReason
    status: int | None
    signal: int | None
    stdout: bytes = b""
    stderr: bytes = b""
    stdout_cut: bool = False
    stderr_cut: bool = False
    wall_s: float
    cpu_s: float
    peak_memory_bytes: int = 0
    files: Mapping[str, bytes] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def succeeded(self) -> bool:
        return self.reason is EndReason.ENDED and self.status == 0

    def text(self) -> str:
        """Both outputs as for a reader, with notes of what was cut and of why it ended."""
        parts = []
        for output, cut in ((self.stdout, self.stdout_cut), (self.stderr, self.stderr_cut)):
            if output or cut:
                note = f"\n[cut after {len(output)} bytes]" if cut else ""
                parts.append(output.decode(errors="replace") + note)
        if self.reason is not EndReason.ENDED:
            parts.append(f"[ended by the sandbox: {self.reason.value}]")
        elif self.signal is not None:
            parts.append(f"[ended by signal {self.signal}]")
        elif self.status:
            parts.append(f"[exit status {self.status}]")
        return "\n".join(parts)


class SandboxUnavailableError(RuntimeError):
    """This machine cannot contain a program. The message says what is missing and the remedy."""


class SandboxFailedError(RuntimeError):
    """The sandbox itself broke, whatever the program did. The message says where."""
