"""Attempts to read, write, reach, signal or become what is outside of the sandbox."""

from __future__ import annotations

import os

import psutil

from colocate.sandbox.result import EndReason, SandboxResult
from tests.sandbox.abuse import SECRET, Abuse, Outside, ended_by, error_of, says

_SEARCH_ENVIRONMENTS = f"""
import os
pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
found = refused = 0
for pid in pids:
    for kind in ("environ", "mem", "root", "cwd"):
        try:
            if kind == "environ":
                found += b"{SECRET}" in open(f"/proc/{{pid}}/environ", "rb").read()
            elif pid == 1:
                os.stat(f"/proc/1/{{kind}}/.") if kind != "mem" else open("/proc/1/mem", "rb")
        except PermissionError:
            refused += pid == 1
print(sorted(pids) == [1, os.getpid()], found, refused)
"""

_SEARCH_FILES = f"""
import os, sys
found = 0
seen = set()
for top, folders, names in os.walk("/", followlinks=False):
    folders[:] = [f for f in folders if os.path.join(top, f) not in ("/proc", "/usr", sys.prefix,
                  sys.base_prefix)]
    for name in names:
        path = os.path.join(top, name)
        if os.path.isfile(path) and path != "/home/sandbox/main.py":
            found += b"{SECRET}" in open(path, "rb").read()
print(found, os.listdir("/home"))
"""

_WRITE_ANYWHERE = """
import errno, os, sys
kinds = set()
for folder in ("/", "/usr", "/etc", "/proc", "/dev", "/home", os.path.dirname(os.__file__),
               sys.prefix):
    try:
        open(folder + "/colocate-test-escape", "w").close()
        print("wrote in", folder)
    except OSError as error:
        kinds.add(errno.errorcode[error.errno])
print(kinds <= {"EROFS", "EACCES", "ENOENT"})
"""

_SIGNAL_OUTSIDE = """
import os, signal
for pid in (PID, VICTIM_PID):
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        print("no such process")
for name in os.listdir("/proc"):
    if name.isdigit() and int(name) not in (1, os.getpid()):
        print("sees", name)
print(os.getppid())
"""

_KILL_WARDEN = """
import os, signal, time
for number in signal.valid_signals():
    os.kill(1, number)
os.write(1, b"warden signalled")
time.sleep(60)
print("survived")
"""

_DESCRIPTORS = """
import os
listing = os.open("/proc/self/fd", os.O_RDONLY)
print(sorted(int(name) for name in os.listdir(listing) if int(name) != listing)[:3], listing)
try:
    os.write(DESCRIPTOR, b"escaped")
except OSError:
    print("no descriptor")
"""

_BECOME_ROOT = """
import os, shutil, subprocess
for call in (os.setuid, os.setgid, lambda number: os.setgroups([number])):
    try:
        call(0)
        print("became root")
    except OSError:
        print("refused")
shutil.copy("/bin/sh", "sh")
os.chmod("sh", 0o6777)
print(subprocess.run(["./sh", "-p", "-c", "id -u"], capture_output=True, text=True).stdout.strip())
print(subprocess.run(["su", "-c", "id -u"], capture_output=True, text=True).stdout.strip())
"""

_LINKS = """
import os
os.symlink(SECRET_FILE, "link")
os.symlink("/etc", "folder")
os.mkfifo("pipe")
os.mkdir("directory")
open("good", "w").write("kept")
os.link("good", "hard")
"""


def _nothing_collected_through_links(result: SandboxResult, outside: Outside) -> None:
    assert result.succeeded, result.text()
    assert dict(result.files) == {"good": b"kept", "hard": b"kept"}
    assert set(result.missing) == {"link", "folder/passwd", "pipe", "directory"}


def _much_is_not_handed_over(result: SandboxResult, outside: Outside) -> None:
    assert result.succeeded, result.text()
    assert [len(content) for content in result.files.values()] == [4 << 20, 4 << 20]
    assert list(result.missing) == ["2"]


def _nothing_written_outside(result: SandboxResult, outside: Outside) -> None:
    says("True")(result, outside)
    for folder in ("/", "/usr", "/etc", "/home", os.path.dirname(os.__file__)):
        assert not os.path.exists(f"{folder}/colocate-test-escape")


def _victims_live(result: SandboxResult, outside: Outside) -> None:
    says("no such process", "no such process", "1")(result, outside)
    assert psutil.Process(outside.victim_pid).status() != psutil.STATUS_ZOMBIE


def _warden_unmoved(result: SandboxResult, outside: Outside) -> None:
    ended_by(EndReason.DEADLINE)(result, outside)
    assert result.stdout == b"warden signalled"


def _secret_kept(result: SandboxResult, outside: Outside) -> None:
    says("ENOENT", "ENOENT", "ENOENT")(result, outside)
    assert outside.secret_file.read_text() == SECRET
    assert list(outside.folder.glob("*escape*")) == []


def _calls(name: str, *attempts: str, fails_with: str) -> Abuse:
    return Abuse(name, error_of(*attempts), says(*[fails_with] * len(attempts)))


_SOCKET = "socket.socket(socket.{}, socket.{}).connect({})"

ESCAPES = (
    Abuse(
        "reading environments, memory and folders of others", _SEARCH_ENVIRONMENTS, says("True 0 4")
    ),
    Abuse(
        "reading and writing a file outside",
        error_of(
            "open(SECRET_FILE)",
            "open(FOLDER + '/escape', 'w')",
            "open('/../../..' + SECRET_FILE)",
        ),
        _secret_kept,
    ),
    Abuse("searching all files for a secret", _SEARCH_FILES, says("0 ['sandbox']")),
    Abuse("writing wherever there is a folder", _WRITE_ANYWHERE, _nothing_written_outside),
    _calls(
        "connecting to a listening server of the parent",
        _SOCKET.format("AF_INET", "SOCK_STREAM", "('127.0.0.1', TCP_PORT)"),
        fails_with="ENETUNREACH",
    ),
    _calls(
        "sending a datagram to the parent, and to the world",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('127.0.0.1', UDP_PORT))",
        "socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b'x', ('192.0.2.1', 53))",
        fails_with="ENETUNREACH",
    ),
    Abuse(
        "asking for a name",
        "import socket\n"
        "try:\n    print(socket.getaddrinfo('example.com', 80))\n"
        "except socket.gaierror:\n    print('no answer')",
        says("no answer"),
    ),
    _calls(
        "connecting to an abstract socket of the parent",
        _SOCKET.format("AF_UNIX", "SOCK_STREAM", "'\\0' + ABSTRACT_NAME"),
        fails_with="ECONNREFUSED",
    ),
    _calls(
        "connecting to a socket of the parent by its path",
        _SOCKET.format("AF_UNIX", "SOCK_STREAM", "SOCKET_PATH"),
        fails_with="ENOENT",
    ),
    _calls(
        "sockets that no network namespace confines, and raw ones",
        "socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)",
        "socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)",
        "socket.socket(socket.AF_PACKET, socket.SOCK_RAW)",
        "socket.socket(socket.AF_ALG, socket.SOCK_SEQPACKET)",
        fails_with="EAFNOSUPPORT",
    ),
    Abuse("killing the parent and another process", _SIGNAL_OUTSIDE, _victims_live),
    Abuse(
        "killing the warden",
        _KILL_WARDEN,
        _warden_unmoved,
        limits={"wall_s": 1.0},
    ),
    _calls(
        "tracing the warden, the parent and itself",
        "call(libc.ptrace(16, 1, 0, 0))",
        "call(libc.ptrace(16, PID, 0, 0))",
        "call(libc.ptrace(0, 0, 0, 0))",
        "call(libc.process_vm_readv(PID, 0, 0, 0, 0, 0))",
        fails_with="EPERM",
    ),
    Abuse("using a descriptor of the parent", _DESCRIPTORS, says("[0, 1, 2] 3", "no descriptor")),
    Abuse("becoming root", _BECOME_ROOT, says("refused", "refused", "refused", "1000", "")),
    _calls(
        "mounting and moving the root",
        "call(libc.mount(b'tmpfs', b'/tmp', b'tmpfs', 0, 0))",
        "call(libc.mount(0, b'/usr', 0, 0x1020, 0))",
        "call(libc.umount2(b'/usr', 2))",
        "call(libc.syscall(155 if os.uname().machine == 'x86_64' else 41, b'.', b'.'))",
        "os.chroot('/tmp')",
        fails_with="EPERM",
    ),
    _calls(
        "new namespaces, and those of the warden",
        "call(libc.unshare(0x10000000))",
        "call(libc.unshare(0x00020000))",
        "call(libc.setns(0, 0))",
        "call(libc.syscall(56 if os.uname().machine == 'x86_64' else 220, 0x10000011, 0, 0, 0, 0))",
        fails_with="EPERM",
    ),
    _calls(
        "opening files by handle",
        "call(libc.open_by_handle_at(-100, b'x' * 64, 0))",
        fails_with="EPERM",
    ),
    _calls(
        "making devices",
        "os.mknod('disk', 0o60600, os.makedev(8, 0))",
        "os.mknod('memory', 0o20600, os.makedev(1, 1))",
        fails_with="EPERM",
    ),
    _calls(
        "interfaces of the kernel that attacks like",
        "call(libc.syscall(425, 1, 0))",
        "call(libc.syscall(321 if os.uname().machine == 'x86_64' else 280, 0, 0, 0))",
        "call(libc.syscall(250 if os.uname().machine == 'x86_64' else 219, 0, -3, 0))",
        "call(libc.syscall(323 if os.uname().machine == 'x86_64' else 282, 0))",
        fails_with="EPERM",
    ),
    _calls(
        "shared memory that outlives its processes, and that no limit counts",
        "call(libc.shmget(0, 1 << 30, 0o1600))",
        "call(libc.msgget(0, 0o1600))",
        fails_with="EPERM",
    ),
    _calls(
        "setting the clock, and going before others",
        "call(libc.settimeofday(b'\\0' * 16, 0))",
        "os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1))",
        fails_with="EPERM",
    ),
    _calls(
        "being spared when memory runs out",
        "open('/proc/self/oom_score_adj', 'w', buffering=1).write('-1\\n')",
        fails_with="EACCES",
    ),
    Abuse(
        "results that are links, pipes and folders",
        _LINKS,
        _nothing_collected_through_links,
        collect=("good", "hard", "link", "folder/passwd", "pipe", "directory"),
    ),
    Abuse(
        "results that are larger than the disk",
        "for name in '012':\n    open(name, 'wb').truncate(4 << 20)",
        _much_is_not_handed_over,
        collect=("0", "1", "2"),
    ),
    Abuse(
        "results that may not be read",
        "import os\nopen('x', 'w').close()\nos.chmod('x', 0)\nos.chmod('.', 0)",
        lambda result, outside: _assert_missing(result, "x"),
        collect=("x",),
    ),
    Abuse(
        "leaving shared memory behind",
        "import os\n"
        "open('/dev/shm/colocate-test-escape', 'w').close()\n"
        "print(os.listdir('/dev/shm'))",
        lambda result, outside: _not_in_shared_memory(result, outside),
    ),
)


def _assert_missing(result: SandboxResult, name: str) -> None:
    assert result.succeeded, result.text()
    assert not result.files
    assert list(result.missing) == [name]


def _not_in_shared_memory(result: SandboxResult, outside: Outside) -> None:
    says("['colocate-test-escape']")(result, outside)
    assert not os.path.exists("/dev/shm/colocate-test-escape")
