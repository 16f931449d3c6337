"""The program's home: what is put there before it starts, and taken from it after it ended."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A pipe must not block who opens it, and a link must not lead elsewhere.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def put(home: str, files: Mapping[str, bytes]) -> None:
    """Writes files by their paths below ``home``, with the folders they need."""
    for name, content in files.items():
        path = Path(home, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def take(
    home: str, names: Sequence[str], most_bytes: int
) -> tuple[dict[str, bytes], dict[str, str]]:
    """Reads files by their paths below ``home``, none of which may lead through a link.

    To be called when nothing of the program runs any more.

    Args:
        home: The folder.
        names: Paths below it.
        most_bytes: Of all of them together.

    Returns:
        The contents, and for each file that is not among them the reason.
    """
    taken: dict[str, bytes] = {}
    missing: dict[str, str] = {}
    left = most_bytes
    for name in names:
        try:
            content = _read(home, name, left)
        except OSError as error:
            # ENOTDIR: where a folder was expected there is a link, or a file.
            is_link = error.errno in (errno.ELOOP, errno.ENOTDIR)
            missing[name] = "a link or no folder" if is_link else os.strerror(error.errno or 0)
        except ValueError as error:
            missing[name] = str(error)
        else:
            taken[name] = content
            left -= len(content)
    return taken, missing


def _read(home: str, name: str, most_bytes: int) -> bytes:
    *folders, last = name.split("/")
    folder = os.open(home, _FOLDER)
    try:
        for part in folders:
            below = os.open(part, _FOLDER, dir_fd=folder)
            os.close(folder)
            folder = below
        file = os.open(last, _FILE, dir_fd=folder)
    finally:
        os.close(folder)
    with open(file, "rb") as opened:
        state = os.fstat(opened.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise ValueError("no regular file")
        if state.st_size > most_bytes:
            raise ValueError(f"{state.st_size} bytes, and {most_bytes} may still be handed over")
        return opened.read()
