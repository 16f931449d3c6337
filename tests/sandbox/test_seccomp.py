"""The filter on system calls, against the kernel's own headers and by an independent reading."""

from __future__ import annotations

import errno
import re
import socket
import struct
from pathlib import Path

import pytest

from colocate.sandbox.inside import seccomp

_HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_FAMILIES = frozenset({int(socket.AF_UNIX), int(socket.AF_INET)})
_ALLOWED = 0x7FFF0000


def _numbers(machine: str) -> dict[str, int]:
    if not _HEADERS[machine].is_file():
        pytest.skip("the kernel's headers are not installed")
    pattern = r"define __NR(?:3264)?_(\w+)\s+(\d+)"
    return {
        name: int(number) for name, number in re.findall(pattern, _HEADERS[machine].read_text())
    }


def _verdict(program: bytes, architecture: int, number: int, argument: int = 0) -> int:
    """What a filter answers to one call: an interpreter of the instructions that it uses."""
    data = struct.pack("=IIQQ", number, architecture, 0, argument)
    accumulator = position = 0
    while True:
        code, if_true, if_false, operand = struct.unpack_from("=HBBI", program, position * 8)
        position += 1
        if code == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, operand)
        elif code == 0x06:
            return operand
        else:
            holds = {
                0x15: accumulator == operand,
                0x35: accumulator >= operand,
                0x45: bool(accumulator & operand),
            }[code]
            position += if_true if holds else if_false


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_exactly_the_calls_on_the_list_are_refused(machine: str) -> None:
    program = seccomp.build(machine, _FAMILIES)
    refused = {
        name
        for name, number in _numbers(machine).items()
        if _verdict(program, _ARCHITECTURES[machine], number, int(socket.AF_UNIX)) != _ALLOWED
    }
    assert refused == {*seccomp._FORBIDDEN, "clone3"}


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_threads_and_forks_are_allowed_and_namespaces_are_not(machine: str) -> None:
    program = seccomp.build(machine, _FAMILIES)
    clone = _numbers(machine)["clone"]
    of_a_thread, of_a_fork = 0x003D0F00, 0x01200011
    for flags in (of_a_thread, of_a_fork):
        assert _verdict(program, _ARCHITECTURES[machine], clone, flags) == _ALLOWED
    for bit in (17, 25, 26, 27, 28, 29, 30):
        flags = of_a_fork | 1 << bit
        verdict = _verdict(program, _ARCHITECTURES[machine], clone, flags)
        assert verdict == 0x00050000 | errno.EPERM


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
@pytest.mark.parametrize("call", ["socket", "socketpair"])
def test_only_sockets_of_the_families_given_are_made(machine: str, call: str) -> None:
    program = seccomp.build(machine, _FAMILIES)
    number = _numbers(machine)[call]
    allowed = {
        family
        for family in range(64)
        if _verdict(program, _ARCHITECTURES[machine], number, family) == _ALLOWED
    }
    assert allowed == _FAMILIES


def test_calls_of_another_architecture_kill() -> None:
    program = seccomp.build("x86_64", _FAMILIES)
    assert _verdict(program, 0x40000003, 1) == 0x80000000
    assert _verdict(program, _ARCHITECTURES["x86_64"], 0x40000000 | 1) == 0x00050000 | errno.ENOSYS
