"""A world around the sandbox that programs try to reach, and a look at what they leave behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from colocate.supervision.mark import Mark, MarkedProcess
from colocate.supervision.sweep import living_processes
from tests.patience import patient
from tests.sandbox.abuse import SECRET, Outside

# Independent of the sandbox's own code, so that a fault there is no reason to skip.
_PROBE = """
import ctypes, os
libc = ctypes.CDLL(None)
user = os.geteuid()
if libc.unshare(0x10000000 | 0x00020000):
    raise SystemExit(1)
open("/proc/self/uid_map", "w").write(f"0 {user} 1")
raise SystemExit(libc.mount(b"x", b"/tmp", b"tmpfs", 0, 0) != 0)
"""


@pytest.fixture(scope="session")
def namespaces_allowed() -> None:
    """Skips where this machine's settings forbid ordinary users their own namespaces."""
    if subprocess.run([sys.executable, "-I", "-S", "-c", _PROBE], stderr=-3).returncode:
        pytest.skip("user namespaces are disabled or restricted on this machine")


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test, no process that it started lives: known by a mark that is inherited."""
    mark = Mark(f"sandbox-{uuid.uuid4().hex}")
    marked = MarkedProcess(mark)
    try:
        yield
        deadline_s = time.monotonic() + patient(2.0)
        while left := living_processes(mark, {os.getpid()}):
            assert time.monotonic() < deadline_s, f"still alive: {left}"
            time.sleep(0.01)
    finally:
        marked.restore()


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Outside]:
    """A secret in the environment and in a file, servers, a victim and an open descriptor.

    Afterwards no server must have been reached.
    """
    monkeypatch.setenv("COLOCATE_TEST_SECRET", SECRET)
    secret_file = tmp_path / "secret.txt"
    secret_file.write_text(SECRET)
    abstract_name = f"colocate-test-{uuid.uuid4().hex}"
    socket_path = tmp_path / "s"
    tcp, abstract, named = (
        socket.socket(socket.AF_INET),
        socket.socket(socket.AF_UNIX),
        socket.socket(socket.AF_UNIX),
    )
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    tcp.bind(("127.0.0.1", 0))
    udp.bind(("127.0.0.1", 0))
    abstract.bind(f"\0{abstract_name}")
    named.bind(str(socket_path))
    for server in (tcp, abstract, named):
        server.listen()
        server.setblocking(False)
    udp.setblocking(False)
    open_file = (tmp_path / "open.txt").open("w")
    os.set_inheritable(open_file.fileno(), True)
    # Moved up, so that no descriptor of the sandbox's own has its number.
    descriptor = 60
    os.dup2(open_file.fileno(), descriptor)
    victim = subprocess.Popen(["sleep", "600"])
    try:
        yield Outside(
            folder=tmp_path,
            secret_file=secret_file,
            pid=os.getpid(),
            victim_pid=victim.pid,
            descriptor=descriptor,
            tcp_port=tcp.getsockname()[1],
            udp_port=udp.getsockname()[1],
            abstract_name=abstract_name,
            socket_path=socket_path,
        )
        for server in (tcp, abstract, named):
            with pytest.raises(BlockingIOError):
                server.accept()
        with pytest.raises(BlockingIOError):
            udp.recv(16)
        assert (tmp_path / "open.txt").read_text() == ""
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()
        os.close(descriptor)
        open_file.close()
        for server in (tcp, udp, abstract, named):
            server.close()
