"""What a probe raises when it cannot say what the device holds."""

from __future__ import annotations


class MemoryProbeError(RuntimeError):
    """Device memory could not be read. The message names the cause and the remedy."""
