"""Abuses of what a machine has little of: processes, memory, disk, time, output."""

from __future__ import annotations

from colocate.sandbox.limits import MIB
from colocate.sandbox.result import EndReason, SandboxResult
from tests.sandbox.abuse import Abuse, Check, Outside, ended_by, says

_COUNT_FORKS = """
import errno, os, time
made = 0
try:
    while made < 500:
        if os.fork() == 0:
            time.sleep(60)
        made += 1
except OSError as error:
    print(made, errno.errorcode[error.errno])
"""

_THREADS = """
import threading
made, stop = 0, threading.Event()
try:
    while made < 500:
        threading.Thread(target=stop.wait, daemon=True).start()
        made += 1
except RuntimeError:
    print(made)
"""

_FORK_AND_LEAVE = """
import os, signal
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    try:
        if os.fork():
            os._exit(0)
    except OSError:
        pass
"""

_TOUCH_IN_MANY = """
import mmap, os, time
for _ in range(8):
    if os.fork() == 0:
        memory = mmap.mmap(-1, 48 << 20, flags=FLAGS | mmap.MAP_ANONYMOUS)
        for page in range(0, len(memory), 4096):
            memory[page] = 1
        time.sleep(60)
time.sleep(60)
print("survived")
"""

_FILL = """
import errno, os
total = 0
def fill(folder):
    global total
    try:
        for number in range(1000):
            with open(f"{folder}/{number}", "wb", buffering=0) as file:
                total += file.write(bytes(1 << 20))
    except OSError as error:
        print(errno.errorcode[error.errno])
for folder in FOLDERS:
    fill(folder)
print(total >> 20)
"""


def _fits(megabytes: int) -> Check:
    def check(result: SandboxResult, outside: Outside) -> None:
        *errors, total = result.stdout.decode().split()
        assert set(errors) == {"ENOSPC"}, result.text()
        assert 0 < int(total) <= megabytes

    return check


def _flooded(stream: str) -> Check:
    def check(result: SandboxResult, outside: Outside) -> None:
        assert result.reason is EndReason.OUTPUT
        assert len(getattr(result, stream)) == 65536
        assert getattr(result, f"{stream}_cut")
        assert "[cut after 65536 bytes]" in result.text()

    return check


def _in_time(seconds: float) -> Check:
    def check(result: SandboxResult, outside: Outside) -> None:
        ended_by(EndReason.DEADLINE)(result, outside)
        assert seconds <= result.wall_s

    return check


def _main_ended_alone(result: SandboxResult, outside: Outside) -> None:
    assert result.reason is EndReason.ENDED
    assert result.status == 0
    assert result.stdout == b"main is done\n"
    assert result.wall_s < 50


_DAEMON = """
import os, signal, time
reading, writing = os.pipe()
if os.fork() == 0:
    os.setsid()
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)
    if os.fork() == 0:
        CLOSE
        os.write(writing, b"x")
        while True:
            time.sleep(1)
    os._exit(0)
os.wait()
os.read(reading, 1)
"""

RESOURCE_ABUSES = (
    # The program itself is one of the sixteen.
    Abuse("fork bomb", _COUNT_FORKS, says("15 EAGAIN")),
    # Threads reserve far more address space than they use.
    Abuse("thread bomb", _THREADS, says("15"), limits={"memory_bytes": 4096 * MIB}),
    Abuse(
        "fork bomb whose parents leave at once",
        # The program ends with its first fork; the rest must not outlive it.
        _FORK_AND_LEAVE,
        says(),
    ),
    Abuse(
        "fork bomb of a shell, to the deadline",
        "import os; os.execv('/bin/sh', ['sh', '-c', 'f() { f | f & }; f; sleep 60'])",
        ended_by(EndReason.DEADLINE),
        limits={"wall_s": 1.0},
    ),
    Abuse(
        "memory bomb in one process",
        "try:\n    x = bytearray(1 << 30)\nexcept MemoryError:\n    print('no memory')",
        says("no memory"),
    ),
    Abuse(
        "memory bomb over many processes",
        _TOUCH_IN_MANY.replace("FLAGS", "mmap.MAP_PRIVATE"),
        ended_by(EndReason.MEMORY),
        limits={"memory_bytes": 192 * MIB},
    ),
    Abuse(
        "memory bomb of shared memory",
        _TOUCH_IN_MANY.replace("FLAGS", "mmap.MAP_SHARED"),
        ended_by(EndReason.MEMORY),
        limits={"memory_bytes": 192 * MIB},
    ),
    Abuse(
        "memory that no process maps",
        "import os\ntry:\n    os.memfd_create('x')\nexcept PermissionError:\n    print('refused')",
        says("refused"),
    ),
    Abuse("disk fill", _FILL.replace("FOLDERS", "['.']"), _fits(8)),
    Abuse(
        "disk fill in all that is writable",
        _FILL.replace("FOLDERS", "['.', '/tmp', '/dev/shm']"),
        _fits(8),
    ),
    Abuse(
        "huge file",
        "import errno\n"
        "with open('x', 'wb', buffering=0) as file:\n"
        "    file.write(bytes(3 << 20))\n"
        "    try:\n"
        "        print(file.write(bytes(3 << 20)) >> 20)\n"
        "        file.write(b'x')\n"
        "    except OSError as error:\n"
        "        print(errno.errorcode[error.errno])",
        says("1", "EFBIG"),
    ),
    Abuse(
        "huge sparse file",
        "import errno\n"
        "try:\n"
        "    open('x', 'wb').truncate(1 << 40)\n"
        "except OSError as error:\n"
        "    print(errno.errorcode[error.errno])",
        says("EFBIG"),
    ),
    Abuse(
        "a million files",
        "import errno\n"
        "made = 0\n"
        "try:\n"
        "    for number in range(1_000_000):\n"
        "        open(str(number), 'w').close()\n"
        "        made += 1\n"
        "except OSError as error:\n"
        "    print(made < 256, errno.errorcode[error.errno])",
        says("True ENOSPC"),
    ),
    Abuse("output flood", "while True:\n    print('x' * 1000)", _flooded("stdout")),
    Abuse(
        "flood of standard error",
        "import sys\nwhile True:\n    sys.stderr.write('x' * 1000)",
        _flooded("stderr"),
    ),
    Abuse(
        "stdin flood that is never read",
        "print('not reading')",
        says("not reading"),
        stdin=bytes(32 * MIB),
    ),
    Abuse(
        "endless loop",
        "while True:\n    pass",
        ended_by(EndReason.CPU),
        limits={"cpu_s": 0.5},
    ),
    Abuse(
        "endless loops in children that are orphaned",
        "import os, time\n"
        "for _ in range(3):\n"
        "    if os.fork() == 0:\n"
        "        if os.fork() == 0:\n"
        "            while True:\n"
        "                pass\n"
        "        os._exit(0)\n"
        "time.sleep(60)\n"
        "print('survived')",
        ended_by(EndReason.CPU),
        limits={"cpu_s": 1.0},
    ),
    Abuse(
        "sleep past the deadline",
        "import time\ntime.sleep(60)\nprint('survived')",
        _in_time(0.5),
        limits={"wall_s": 0.5},
    ),
    Abuse(
        "ignoring every signal past the deadline",
        "import signal, time\n"
        "for number in signal.valid_signals():\n"
        "    try:\n"
        "        signal.signal(number, signal.SIG_IGN)\n"
        "    except (OSError, ValueError):\n"
        "        pass\n"
        "time.sleep(60)\n"
        "print('survived')",
        _in_time(1.0),
        limits={"wall_s": 1.0},
    ),
    Abuse(
        "stopping itself past the deadline",
        "import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\nprint('survived')",
        _in_time(1.0),
        limits={"wall_s": 1.0},
    ),
    Abuse(
        "a daemon that outlives the program",
        _DAEMON.replace("CLOSE", "os.closerange(0, 3)") + "print('main is done')",
        _main_ended_alone,
    ),
    Abuse(
        "a daemon that keeps the outputs open",
        _DAEMON.replace("CLOSE", "pass") + "print('main is done')",
        _main_ended_alone,
    ),
    Abuse(
        "a daemon that outlives the deadline",
        _DAEMON.replace("CLOSE", "pass") + "time.sleep(60)\nprint('survived')",
        _in_time(1.0),
        limits={"wall_s": 1.0},
    ),
    Abuse(
        "open files without end",
        "import errno\n"
        "kept = []\n"
        "try:\n"
        "    while True:\n"
        "        kept.append(open('/dev/null'))\n"
        "except OSError as error:\n"
        "    print(len(kept) < 64, errno.errorcode[error.errno])",
        says("True EMFILE"),
    ),
    Abuse(
        "raising its own limits",
        "import resource\n"
        "for kind in (resource.RLIMIT_NPROC, resource.RLIMIT_AS, resource.RLIMIT_FSIZE):\n"
        "    soft, hard = resource.getrlimit(kind)\n"
        "    try:\n"
        "        resource.setrlimit(kind, (hard + 1, hard + 1))\n"
        "    except ValueError:\n"
        "        print('refused')",
        says("refused", "refused", "refused"),
    ),
    Abuse(
        "core dump",
        "import os, resource\nresource.setrlimit(resource.RLIMIT_CORE, (1, 1))\nos.abort()",
        lambda result, outside: _no_core(result),
        collect=("core", "core.2"),
    ),
)


def _no_core(result: SandboxResult) -> None:
    assert result.signal == 6
    assert set(result.missing) == {"core", "core.2"}
