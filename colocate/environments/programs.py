"""What a program in the sandbox wrote, as a model reads it."""

from __future__ import annotations

from colocate.sandbox.limits import MIB, SandboxLimits
from colocate.sandbox.result import SandboxResult


def limits(timeout_s: float) -> SandboxLimits:
    """For programs of a few lines."""
    return SandboxLimits(
        wall_s=timeout_s, cpu_s=timeout_s, memory_bytes=512 * MIB, output_bytes=MIB // 4
    )


def shown(result: SandboxResult, max_characters: int) -> str:
    """Output and how the program ended; the middle of a long one is left out, and said to be."""
    text = result.text().strip("\n") or "(no output)"
    if len(text) <= max_characters:
        return text
    half = max_characters // 2
    left_out = len(text) - 2 * half
    return f"{text[:half]}\n[{left_out} characters left out]\n{text[-half:]}"
