"""New namespaces for a run, and what to do where one may not make them.

An ordinary user makes a user namespace first, which gives the right to make the others. Root makes
the others at once, shows what only root can reach, then becomes nobody and makes the user
namespace last: nothing in there has any right over the file system's.
"""

from __future__ import annotations

import os
import platform
from pathlib import Path

from colocate.sandbox.inside import syscalls

INSIDE_ID = 1000
"""User and group of the program, in its own user namespace."""

NOBODY = 65534
_OLDEST_KERNEL = (5, 14)
"""Of per-namespace process limits; mounts that are read-only with all below them are of 5.12."""


class UnavailableError(Exception):
    """This machine does not let a program be contained. The message has the remedy."""


def require_kernel() -> None:
    """
    Raises:
        UnavailableError: no Linux, or one that is too old.
    """
    numbers = platform.release().split("-")[0].split(".")[:2]
    if platform.system() != "Linux" or tuple(map(int, numbers)) < _OLDEST_KERNEL:
        raise UnavailableError(
            f"the sandbox needs Linux {'.'.join(map(str, _OLDEST_KERNEL))} or newer, and this is "
            f"{platform.system()} {platform.release()}"
        )


def leave_root() -> None:
    """Root becomes nobody: root's files are not readable then, and limits on processes hold.

    The root of a rootless container is an ordinary user already, and mostly has no other id.

    Raises:
        OSError: this is root indeed, and may not become another user.
    """
    if not is_root():
        return
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    # Changing the user made /proc/self root's, and the maps below are written there.
    syscalls.set_dumpable(True)


def is_root() -> bool:
    """Whether this is root, and not just the one user of a user namespace that somebody made."""
    if os.geteuid() != 0:
        return False
    maps = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    one_user = len(maps) == 1 and maps[0][0] == "0" and maps[0][2] == "1"
    return not (one_user and maps[0][1] != "0")


_OTHERS = (
    syscalls.CLONE_NEWNS
    | syscalls.CLONE_NEWPID
    | syscalls.CLONE_NEWNET
    | syscalls.CLONE_NEWIPC
    | syscalls.CLONE_NEWUTS
    | syscalls.CLONE_NEWCGROUP
)


def enter() -> bool:
    """Puts this process into new namespaces; the next child is the first of the new PID namespace.

    Returns:
        Whether that was done as root: then the user namespace is still to be made, by
        ``become_nobody``, when what only root can reach has been mounted.

    Raises:
        UnavailableError: user namespaces are switched off or restricted.
    """
    try:
        as_root = _enter_as_root()
        if not as_root:
            leave_root()
            _enter_user_namespace(_OTHERS)
        syscalls.set_hostname(b"sandbox")
    except OSError as error:
        raise UnavailableError(
            f"new namespaces are not allowed here ({error}); {remedy()}"
        ) from error
    return as_root


def become_nobody() -> None:
    """Ends what ``enter`` began as root; nothing to do for an ordinary user.

    Raises:
        UnavailableError: user namespaces are switched off or restricted.
    """
    if os.geteuid() == 0:
        try:
            leave_root()
            _enter_user_namespace(0)
        except OSError as error:
            raise UnavailableError(
                f"a new user namespace is not allowed here ({error}); {remedy()}"
            ) from error


def _enter_as_root() -> bool:
    """Whether this is root, and one that may make namespaces: in a container it often may not."""
    if os.geteuid() != 0:
        return False
    try:
        syscalls.unshare(_OTHERS)
    except PermissionError:
        return False
    return True


def _enter_user_namespace(others: int) -> None:
    user, group = os.geteuid(), os.getegid()
    syscalls.unshare(syscalls.CLONE_NEWUSER | others)
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/uid_map").write_text(f"{INSIDE_ID} {user} 1")
    Path("/proc/self/gid_map").write_text(f"{INSIDE_ID} {group} 1")


def remedy() -> str:
    """What to change, by what the kernel's settings say."""
    wrong = {
        "user.max_user_namespaces": "0",
        "kernel.unprivileged_userns_clone": "0",
        "kernel.apparmor_restrict_unprivileged_userns": "1",
    }
    right = {"0": "1", "1": "0"}
    for setting, value in wrong.items():
        path = Path("/proc/sys", *setting.split("."))
        if path.is_file() and path.read_text().strip() == value:
            allowed = "10000" if "max" in setting else right[value]
            return f"{setting} is {value}: sudo sysctl -w {setting}={allowed}"
    return (
        "in a container, its seccomp profile must allow unshare and mount (Docker and Podman: "
        "--security-opt seccomp=FILE --security-opt systempaths=unconfined)"
    )
