"""Limits that a container or a batch system sets on this process's memory, and what they leave."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

# Version 1 has no word for "no limit": it writes the largest number of pages that fits.
_NO_LIMIT = 2**62


@dataclass(frozen=True, slots=True)
class _Files:
    limit: str
    used: str
    reclaimable: tuple[bytes, bytes]


_VERSION_1 = _Files(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    (b"total_inactive_file", b"total_active_file"),
)
_VERSION_2 = _Files("memory.max", "memory.current", (b"inactive_file", b"active_file"))


class ControlGroups:
    """The memory groups (cgroups of version 1 or 2) around this process, up to the root.

    Limits are read at each question: a manager may change them while the run lasts.

    Args:
        process: The folder of ``/proc`` whose groups are meant.
    """

    def __init__(self, process: Path = Path("/proc/self")) -> None:
        membership = (process / "cgroup").read_text()
        mounts = (process / "mountinfo").read_text()
        self._groups = _find_groups(membership, mounts)

    def limit_bytes(self) -> int | None:
        """The tightest limit; ``None`` where there is none."""
        return min(
            (
                limit
                for folder, files in self._groups
                if (limit := _limit(folder, files)) is not None
            ),
            default=None,
        )

    def left_bytes(self) -> int | None:
        """What may still be taken before the tightest group is full; ``None``: no limit.

        A group pays for the page cache of files that it read, which the kernel drops before it
        kills anything. So the file pages are taken off, as ``MemAvailable`` does for the machine;
        shared memory is not among them. Negative where a limit was lowered below what is used.
        """
        return min(
            (
                limit - _unreclaimable(folder, files)
                for folder, files in self._groups
                if (limit := _limit(folder, files)) is not None
            ),
            default=None,
        )


def _find_groups(membership: str, mounts: str) -> list[tuple[Path, _Files]]:
    """Folder and file names of each group that limits memory, from the innermost.

    Formats: ``cgroups(7)`` and ``proc_pid_mountinfo(5)``. Both versions may be mounted, but the
    memory controller is in one of them only; the other's folders have no file of it.
    """
    groups: list[tuple[Path, _Files]] = []
    for mount in mounts.splitlines():
        common, _, special = mount.partition(" - ")
        root, mount_point = common.split()[3:5]
        kind, _, options = special.split()[:3]
        if kind == "cgroup2":
            files, controller = _VERSION_2, ""
        elif kind == "cgroup" and "memory" in options.split(","):
            files, controller = _VERSION_1, "memory"
        else:
            continue
        own = next(
            (
                path
                for _, controllers, path in (line.split(":", 2) for line in membership.splitlines())
                if controller in controllers.split(",")
            ),
            None,
        )
        if own is None:
            continue
        top = Path(mount_point)
        # A container may have only its own group mounted, or see it as the root.
        inside = Path(own).relative_to(root) if Path(own).is_relative_to(root) else Path()
        folder = top / inside
        for each in (folder, *folder.parents):
            if (each / files.limit).is_file():
                groups.append((each, files))
            if each == top:
                break
    return groups


def _limit(folder: Path, files: _Files) -> int | None:
    text = (folder / files.limit).read_text().strip()
    return None if text == "max" or int(text) >= _NO_LIMIT else int(text)


def _unreclaimable(folder: Path, files: _Files) -> int:
    used = int((folder / files.used).read_text())
    stat = dict(line.split() for line in (folder / "memory.stat").read_bytes().splitlines())
    return used - sum(int(stat.get(name, 0)) for name in files.reclaimable)
