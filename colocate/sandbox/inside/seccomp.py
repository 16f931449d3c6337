"""The filter on system calls: what no program in the sandbox needs, and much of what attacks use.

It is a second wall behind the namespaces, and closes what they leave open: sockets of families
that no network namespace confines (AF_VSOCK reaches the machine's host), memory that no limit
counts (memfd, System V segments), and further namespaces.
"""

from __future__ import annotations

import ctypes
import errno
import platform
import socket
import struct

from colocate.sandbox.inside.syscalls import (
    CLONE_NEWCGROUP,
    CLONE_NEWIPC,
    CLONE_NEWNET,
    CLONE_NEWNS,
    CLONE_NEWPID,
    CLONE_NEWUSER,
    CLONE_NEWUTS,
    prctl,
)

_AUDIT_ARCHITECTURE = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Name to number on x86_64 and on aarch64, as in Linux's asm/unistd_64.h and asm-generic/unistd.h.
_FORBIDDEN = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "msgget": (68, 186),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "semget": (64, 190),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "shmget": (29, 194),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
}
_CLONE, _CLONE3 = (56, 220), (435, 435)
_SOCKET, _SOCKETPAIR = (41, 198), (53, 199)
_NEW_NAMESPACES = (
    CLONE_NEWNS
    | CLONE_NEWCGROUP
    | CLONE_NEWUTS
    | CLONE_NEWIPC
    | CLONE_NEWUSER
    | CLONE_NEWPID
    | CLONE_NEWNET
)
_X32_CALLS = 0x40000000

# Of struct seccomp_data; the arguments are read by their lower halves (both are little-endian).
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _REFUSE, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER = 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def supported() -> bool:
    """Whether there is a filter for this machine's architecture."""
    return platform.machine() in _AUDIT_ARCHITECTURE


def _instruction(code: int, operand: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, operand)


def _refuse(number: int) -> bytes:
    return _instruction(_RETURN, _REFUSE | number)


def build(machine: str, families: frozenset[int]) -> bytes:
    """The filter as instructions of classic BPF.

    Args:
        machine: As ``platform.machine()`` has it.
        families: Of sockets that may be made; others fail with EAFNOSUPPORT.
    """
    column = list(_AUDIT_ARCHITECTURE).index(machine)
    program = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_EQUAL, _AUDIT_ARCHITECTURE[machine], 1, 0),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
        _instruction(_AT_LEAST, _X32_CALLS, 0, 1),
        _refuse(errno.ENOSYS),
        # Its flags are in memory, which a filter cannot read; the C library falls back on clone.
        _instruction(_EQUAL, _CLONE3[column], 0, 1),
        _refuse(errno.ENOSYS),
    ]
    for numbers in _FORBIDDEN.values():
        program += [_instruction(_EQUAL, numbers[column], 0, 1), _refuse(errno.EPERM)]
    program += [
        _instruction(_EQUAL, _CLONE[column], 0, 4),
        _instruction(_LOAD, _FIRST_ARGUMENT),
        _instruction(_HAS_BITS, _NEW_NAMESPACES, 0, 1),
        _refuse(errno.EPERM),
        _instruction(_RETURN, _ALLOW),
        _instruction(_EQUAL, _SOCKET[column], 1, 0),
        _instruction(_EQUAL, _SOCKETPAIR[column], 0, len(families) + 2),
        _instruction(_LOAD, _FIRST_ARGUMENT),
    ]
    for before, family in enumerate(sorted(families)):
        program.append(_instruction(_EQUAL, family, len(families) - before, 0))
    program += [_refuse(errno.EAFNOSUPPORT), _instruction(_RETURN, _ALLOW)]
    return b"".join(program)


def install(*, network: bool) -> None:
    """Puts the filter on this process and all that it starts. Needs ``no_new_privs``.

    Args:
        network: Whether internet sockets may be made: where a network namespace confines them.
    """
    families = {socket.AF_UNIX, *((socket.AF_INET, socket.AF_INET6) if network else ())}
    instructions = build(platform.machine(), frozenset(int(family) for family in families))
    program = _Program(len(instructions) // 8, instructions)
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.addressof(program))
