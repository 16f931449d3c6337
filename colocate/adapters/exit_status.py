"""How a child process ended, in words."""

from __future__ import annotations

import signal


def describe_status(status: int) -> str:
    """``exit status 1``, or ``killed by SIGKILL``; a negative status is a signal's number."""
    if status >= 0:
        return f"exit status {status}"
    try:
        return f"killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"killed by signal {-status}"
