"""What a program in the sandbox may use."""

from __future__ import annotations

from dataclasses import dataclass, fields

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxLimits:
    """Limits of one run. Every one is positive; those on the whole run say so.

    Example: ``SandboxLimits(wall_s=5.0, memory_bytes=256 * 2**20)``.

    Attributes:
        wall_s: From the program's start to its end, in seconds. The whole run is killed then.
        cpu_s: Processor time of the whole run, in seconds over all cores.
        memory_bytes: Address space of each process (more fails with ENOMEM), and resident memory
            of the whole run (more is killed at the next look, 20 times a second). Runtimes that
            reserve far more address space than they use need a larger one.
        file_bytes: Size of one file.
        disk_bytes: All that the run has written at one time: home, ``/tmp`` and ``/dev/shm``
            together. They are kept in memory, besides ``memory_bytes``.
        files: Files and folders that exist there at one time.
        processes: Processes and threads at one time.
        open_files: Descriptors of one process.
        output_bytes: Of standard output and of standard error, each. More is killed.

    Raises:
        ValueError: a limit that is not positive.
    """

    wall_s: float = 10.0
    cpu_s: float = 10.0
    memory_bytes: int = 1024 * MIB
    file_bytes: int = 64 * MIB
    disk_bytes: int = 128 * MIB
    files: int = 4096
    processes: int = 64
    open_files: int = 256
    output_bytes: int = MIB

    def __post_init__(self) -> None:
        wrong = [
            f"{field.name} is {value!r}"
            for field in fields(self)
            if not (value := getattr(self, field.name)) > 0
        ]
        if wrong:
            raise ValueError(f"limits of a sandbox must be positive: {', '.join(wrong)}")
