"""Where weight buckets lie on CPU, and how a run's are told from others'."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path("/dev/shm")


def file_prefix(run_id: str) -> str:
    """How the names of a run's bucket files begin."""
    return f"colocate-{run_id}-"


def remove_files(run_id: str) -> None:
    """Removes what a rank that was killed while it packed may have left."""
    for path in FOLDER.glob(f"{file_prefix(run_id)}*"):
        path.unlink(missing_ok=True)
