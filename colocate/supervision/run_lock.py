"""One run a folder: a second one is refused while the first, or any process of it, lives."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

LOCK_NAME = ".lock"


class RunFolderBusyError(RuntimeError):
    """Another run holds the folder. The message names the folder and the holder."""


class RunLock:
    """Holds a run's folder from enter to exit. The kernel lets go when the holder dies.

    Args:
        folder: The run's folder; must exist.

    Raises:
        RunFolderBusyError: on enter, where another run holds it.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK_NAME
        self._descriptor: int | None = None

    def __enter__(self) -> RunLock:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            os.close(descriptor)
            raise RunFolderBusyError(
                f"{self._path.parent} is in use by another run (process {holder}); wait for it, "
                "end it, or choose another folder with hydra.run.dir=PATH"
            ) from error
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode())
        self._descriptor = descriptor
        return self

    def __exit__(self, *_: object) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
