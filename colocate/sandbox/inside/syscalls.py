"""The system calls that Python 3.11 has no function for. Each raises OSError."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform

_libc = ctypes.CDLL(None, use_errno=True)

CLONE_NEWNS = 0x00020000
CLONE_NEWCGROUP = 0x02000000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x2, 0x4, 0x8
MS_BIND, MS_REC, MS_PRIVATE = 0x1000, 0x4000, 0x40000
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV = 0x1, 0x2, 0x4
_MNT_DETACH = 0x2
_AT_FDCWD, _AT_RECURSIVE = -100, 0x8000

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_CAPBSET_DROP = 1, 4, 24
_PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS, _PR_CAP_AMBIENT = 36, 38, 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4
_CAPABILITY_VERSION_3 = 0x20080522
_LAST_CAPABILITY = 63

# Numbers of pivot_root; mount_setattr has the same one everywhere.
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR = 442


class _MountAttributes(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


def _check(result: int, what: str) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), what)


def unshare(flags: int) -> None:
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str = "", flags: int = 0, options: str = "") -> None:
    result = _libc.mount(
        source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode()
    )
    _check(result, f"mount {kind or source} on {target}")


def restrict_mount(target: str, attributes: int, *, recursive: bool) -> None:
    """Sets attributes on a mount and, if recursive, on all below it (Linux 5.12)."""
    wanted = _MountAttributes(attr_set=attributes)
    result = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_int(_AT_FDCWD),
        target.encode(),
        ctypes.c_uint(_AT_RECURSIVE if recursive else 0),
        ctypes.byref(wanted),
        ctypes.c_size_t(ctypes.sizeof(wanted)),
    )
    _check(result, f"mount_setattr {target}")


def pivot_root(new: str, old: str) -> None:
    number = ctypes.c_long(_PIVOT_ROOT[platform.machine()])
    _check(_libc.syscall(number, new.encode(), old.encode()), "pivot_root")


def detach(target: str) -> None:
    """Unmounts a tree: out of sight at once, gone when nobody uses it."""
    _check(_libc.umount2(target.encode(), _MNT_DETACH), f"umount {target}")


def set_hostname(name: bytes) -> None:
    _check(_libc.sethostname(name, ctypes.c_size_t(len(name))), "sethostname")


def prctl(option: int, *arguments: int) -> None:
    padded = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    _check(_libc.prctl(option, *padded), f"prctl {option}")


def die_with_parent(number: int) -> None:
    prctl(_PR_SET_PDEATHSIG, number)


def set_dumpable(dumpable: bool) -> None:
    """Whether processes of the same user may read and trace this one."""
    prctl(_PR_SET_DUMPABLE, int(dumpable))


def adopt_orphans() -> None:
    prctl(_PR_SET_CHILD_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> None:
    """Gives up every capability, for good: also those that a program file could give."""
    # EINVAL: beyond the last one of this kernel. EPERM: without CAP_SETPCAP there are none.
    with contextlib.suppress(OSError):
        for capability in range(_LAST_CAPABILITY + 1):
            prctl(_PR_CAPBSET_DROP, capability)
    prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    _check(_libc.capset(ctypes.byref(header), ctypes.byref(none)), "capset")
