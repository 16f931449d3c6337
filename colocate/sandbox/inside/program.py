"""From a fork of the warden to the program: limits, no privileges, no descriptors, then exec."""

from __future__ import annotations

import contextlib
import math
import os
import resource
import signal

from colocate.sandbox.inside import seccomp, syscalls
from colocate.sandbox.inside.wire import Spec

EXEC_FAILED = 127
_TROUBLE = 3
# Of the reason: what a pipe takes without a reader.
_MOST_WORDS = 4096


def become(
    spec: Spec, home: str, streams: tuple[int, int, int], trouble: int, processes: int
) -> None:
    """Turns this forked process into the program. Never returns; exits with ``EXEC_FAILED``.

    Args:
        spec: What to run.
        home: Working directory.
        streams: Descriptors that become standard input, output and error.
        trouble: Descriptor that gets the reason where this fails, and end of file where not.
        processes: Limit on processes and threads of the user, those of the sandbox included.
    """
    try:
        os.setsid()
        _reset_signals()
        for number, descriptor in enumerate(streams):
            os.dup2(descriptor, number)
        os.dup2(trouble, _TROUBLE, inheritable=False)
        trouble = _TROUBLE
        os.closerange(_TROUBLE + 1, os.sysconf("SC_OPEN_MAX"))
        os.chdir(home)
        os.umask(0o077)
        syscalls.drop_capabilities()
        syscalls.forbid_new_privileges()
        seccomp.install(network=spec["isolation"] == "namespaces")
        _limit(spec, processes)
        os.execvpe(spec["argv"][0], spec["argv"], spec["environment"])
    except BaseException as error:
        os.write(trouble, f"cannot run {spec['argv'][0]}: {error}\n".encode()[:_MOST_WORDS])
    finally:
        os._exit(EXEC_FAILED)


def _reset_signals() -> None:
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        # The C library keeps two real-time signals to itself.
        with contextlib.suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _limit(spec: Spec, processes: int) -> None:
    limits = spec["limits"]
    # The warden kills by the whole run's time; this one is for the case that it comes too late.
    cpu_s = math.ceil(limits["cpu_s"]) + 1
    wanted = {
        # 1 byte, not 0: it keeps the kernel from calling a machine's core handler as well.
        resource.RLIMIT_CORE: (1, 1),
        resource.RLIMIT_CPU: (cpu_s, cpu_s + 1),
        resource.RLIMIT_FSIZE: (limits["file_bytes"],) * 2,
        resource.RLIMIT_MEMLOCK: (0, 0),
        resource.RLIMIT_MSGQUEUE: (0, 0),
        resource.RLIMIT_NICE: (0, 0),
        resource.RLIMIT_NOFILE: (limits["open_files"],) * 2,
        resource.RLIMIT_NPROC: (processes,) * 2,
        resource.RLIMIT_RTPRIO: (0, 0),
        resource.RLIMIT_AS: (limits["memory_bytes"],) * 2,
    }
    for kind, (soft, hard) in wanted.items():
        _, hardest = resource.getrlimit(kind)
        if hardest != resource.RLIM_INFINITY:
            soft, hard = min(soft, hardest), min(hard, hardest)
        resource.setrlimit(kind, (soft, hard))
