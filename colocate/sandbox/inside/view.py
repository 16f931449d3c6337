"""The file system as the program sees it.

    /usr, /bin, /lib* , Python's own folders, what the caller names    read-only
    /etc                 a few generated files                          read-only
    /dev                 null, zero, full, random, urandom              devices
    /proc                processes of this run only
    /home/sandbox, /tmp, /dev/shm    one tmpfs of limited size          writable

Nothing else of the machine is mounted, and what is written goes with the last process.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from colocate.sandbox.inside import syscalls
from colocate.sandbox.inside.namespaces import (
    INSIDE_ID,
    UnavailableError,
    remedy,
)
from colocate.sandbox.inside.wire import Limits

HOME = "/home/sandbox"
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_CONFIGURATION = ("/etc/alternatives", "/etc/ld.so.cache", "/etc/localtime")
_DEVICES = ("null", "zero", "full", "random", "urandom")
_OLD, _NEW, _STORE = "/old", "/new", "/new/store"
_WRITABLE = {"home": HOME, "tmp": "/tmp", "shm": "/dev/shm"}
# The store and the three folders in it.
_OWN_INODES = 4
_PLAIN = syscalls.MS_NOSUID | syscalls.MS_NODEV
_READ_ONLY = syscalls.MOUNT_ATTR_RDONLY | syscalls.MOUNT_ATTR_NOSUID | syscalls.MOUNT_ATTR_NODEV
_GENERATED = {
    "etc/passwd": f"sandbox:x:{INSIDE_ID}:{INSIDE_ID}::{HOME}:/bin/sh\n",
    "etc/group": f"sandbox:x:{INSIDE_ID}:\n",
    "etc/hosts": "127.0.0.1 localhost sandbox\n::1 localhost\n",
}


def enter(readable: Sequence[str], limits: Limits, owner: int | None) -> None:
    """Makes the view and nothing but it the root of this process, in its own mount namespace.

    Args:
        readable: Absolute paths of folders and files to show besides the system's.
        limits: For the size of what is writable.
        owner: User and group of what is writable; ``None``: this process's.

    Raises:
        UnavailableError: mounting is not allowed here, or one of the paths is not there.
    """
    try:
        syscalls.mount("", "/", flags=syscalls.MS_REC | syscalls.MS_PRIVATE)
        _set_aside_old_root()
        syscalls.mount("tmpfs", _NEW, "tmpfs", _PLAIN, "size=1m,nr_inodes=4096,mode=0755")
        _show_system()
        _make_devices()
        os.mkdir(f"{_NEW}/proc", 0o755)
        syscalls.mount("proc", f"{_NEW}/proc", "proc", _PLAIN | syscalls.MS_NOEXEC, "subset=pid")
        _make_writable(limits, owner)
        # After the writable ones, below which a path may lie.
        for path in readable:
            _show(path, required=True)
        syscalls.pivot_root(_NEW, f"{_NEW}/gone")
        os.chdir("/")
        syscalls.detach("/gone")
        os.rmdir("/gone")
        syscalls.restrict_mount("/", _READ_ONLY, recursive=False)
    except OSError as error:
        raise UnavailableError(
            f"the sandbox's file system could not be mounted ({error}); {remedy()}"
        ) from error


def _set_aside_old_root() -> None:
    """An empty tmpfs becomes the root, and the old root lies at ``/old``."""
    stage = "/tmp" if os.path.isdir("/tmp") else "/usr"
    syscalls.mount("tmpfs", stage, "tmpfs", _PLAIN, "size=1m,mode=0755")
    for folder in (_OLD, _NEW):
        os.mkdir(stage + folder, 0o755)
    syscalls.pivot_root(stage, stage + _OLD)
    os.chdir("/")


def _show_system() -> None:
    for path in _SYSTEM + _CONFIGURATION:
        old = _OLD + path
        if os.path.islink(old):
            _make_parents(path)
            os.symlink(os.readlink(old), _NEW + path)
        else:
            _show(path, required=False)
    for name, content in _GENERATED.items():
        target = Path(_NEW, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content)
    os.mkdir(f"{_NEW}/gone", 0o755)


def _show(path: str, *, required: bool) -> None:
    """Binds one folder or file, read-only with all below it."""
    source, target = _resolve(path), _NEW + path
    if not os.path.exists(source):
        if required:
            raise UnavailableError(f"{path} is to be readable in the sandbox, and is not there")
        return
    if os.path.exists(target) and os.path.samefile(source, target):
        return
    _make_parents(path)
    if os.path.isdir(source):
        os.makedirs(target, 0o755, exist_ok=True)
    else:
        Path(target).touch()
    syscalls.mount(source, target, flags=syscalls.MS_BIND | syscalls.MS_REC)
    syscalls.restrict_mount(target, _READ_ONLY, recursive=True)


def _resolve(path: str) -> str:
    """Where a path of the old root lies now, with absolute links taken within the old root."""
    resolved = _OLD
    parts = [part for part in path.split("/") if part]
    links = 0
    while parts:
        part = parts.pop(0)
        step = os.path.join(resolved, part)
        if part == "..":
            resolved = _OLD if resolved == _OLD else os.path.dirname(resolved)
        elif os.path.islink(step) and links < 40:
            links += 1
            link = os.readlink(step)
            resolved = _OLD if link.startswith("/") else resolved
            parts = [item for item in link.split("/") if item not in ("", ".")] + parts
        else:
            resolved = step
    return resolved


def _make_parents(path: str) -> None:
    os.makedirs(os.path.dirname(_NEW + path), 0o755, exist_ok=True)


def _make_devices() -> None:
    os.mkdir(f"{_NEW}/dev", 0o755)
    for name in _DEVICES:
        Path(f"{_NEW}/dev/{name}").touch()
        syscalls.mount(f"{_OLD}/dev/{name}", f"{_NEW}/dev/{name}", flags=syscalls.MS_BIND)
    os.symlink("/proc/self/fd", f"{_NEW}/dev/fd")
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        os.symlink(f"/proc/self/fd/{number}", f"{_NEW}/dev/{name}")


def _make_writable(limits: Limits, owner: int | None) -> None:
    """One tmpfs under three names, so that one size holds for all that is written."""
    os.mkdir(_STORE, 0o755)
    options = f"size={limits['disk_bytes']},nr_inodes={limits['files'] + _OWN_INODES},mode=0755"
    syscalls.mount("tmpfs", _STORE, "tmpfs", _PLAIN, options)
    for name, path in _WRITABLE.items():
        os.mkdir(f"{_STORE}/{name}", 0o700)
        if owner is not None:
            os.chown(f"{_STORE}/{name}", owner, owner)
        os.makedirs(_NEW + path, 0o755, exist_ok=True)
        syscalls.mount(f"{_STORE}/{name}", _NEW + path, flags=syscalls.MS_BIND)
    syscalls.detach(_STORE)
    os.rmdir(_STORE)
