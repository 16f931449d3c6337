"""Starts the program, watches over it, ends all of it, and reports: the run's first process.

As first process of a PID namespace it is out of the program's reach: signals from inside do not
get to it, and when it ends, the kernel kills every process of the namespace. Without namespaces it
adopts whatever is orphaned below it, and hunts down what is left.

    select: output of the program | its input | its end | the caller gone | time for a look
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

from colocate.sandbox.inside import home as home_folder
from colocate.sandbox.inside import program, syscalls, usage
from colocate.sandbox.inside.streams import Feed, Tap, write_all
from colocate.sandbox.inside.wire import STARTED, Report, Spec, pack

_LOOK_S = 0.05
_HUNT_S = 2.0
_KILL_PAUSE_S = 0.002


class CallerGoneError(Exception):
    """Nobody waits for the run any more. All of it has been ended."""


class Warden:
    """One run. Everything happens in ``run``.

    Args:
        spec: What to run.
        stdin: The program's standard input.
        home: The program's home; exists and is empty.
        caller: Descriptor at whose end of file the caller is gone.
        report: Descriptor to report on.
    """

    def __init__(self, spec: Spec, stdin: bytes, home: str, caller: int, report: int) -> None:
        self._spec = spec
        self._limits = spec["limits"]
        self._stdin = stdin
        self._home = home
        self._caller = caller
        self._report = report
        self._alone = spec["isolation"] == "namespaces"
        self._statuses: dict[int, int] = {}
        self._peak_bytes = 0
        self._cpu_s = 0.0

    def run(self, files: dict[str, bytes], other_tasks: int) -> None:
        """Runs the program to its end, and reports.

        Args:
            files: To put into the home.
            other_tasks: Processes and threads that the kernel counts with the program's.

        Raises:
            CallerGoneError: the caller left; there is no report.
        """
        home_folder.put(self._home, files)
        self._protect()
        their_stdin, our_stdin = os.pipe()
        our_stdout, their_stdout = os.pipe()
        our_stderr, their_stderr = os.pipe()
        our_trouble, their_trouble = os.pipe()
        streams = (their_stdin, their_stdout, their_stderr)
        began_s = time.monotonic()
        child = os.fork()
        if child == 0:
            processes = self._limits["processes"] + other_tasks
            program.become(self._spec, self._home, streams, their_trouble, processes)
        for descriptor in (*streams, their_trouble):
            os.close(descriptor)
        write_all(self._report, STARTED)
        feed = Feed(our_stdin, self._stdin)
        taps = [Tap(each, self._limits["output_bytes"]) for each in (our_stdout, our_stderr)]
        trouble = Tap(our_trouble, self._limits["output_bytes"])
        try:
            reason = self._watch(child, began_s, feed, taps)
        finally:
            self._end()
        wall_s = time.monotonic() - began_s
        for tap in (*taps, trouble):
            tap.drain()
        feed.close()
        if trouble.kept:
            reason, taps[1] = "not_started", trouble
        self._send(reason, self._statuses[child], wall_s, taps)

    def _send(self, reason: str, wait_status: int, wall_s: float, taps: list[Tap]) -> None:
        """Collects what was asked for and reports."""
        taken, missing = home_folder.take(
            self._home, self._spec["collect"], self._limits["disk_bytes"]
        )
        killed = os.WIFSIGNALED(wait_status) and os.WTERMSIG(wait_status) == signal.SIGXCPU
        report = Report(
            reason="cpu" if reason == "ended" and killed else reason,
            wait_status=wait_status,
            stdout_cut=taps[0].cut,
            stderr_cut=taps[1].cut,
            wall_s=wall_s,
            cpu_s=max(self._cpu_s, usage.ended_children_cpu_s()),
            peak_memory_bytes=self._peak_bytes,
            files=list(taken),
            missing=missing,
        )
        blobs = [bytes(tap.kept) for tap in taps] + list(taken.values())
        write_all(self._report, pack(report, blobs))

    def _protect(self) -> None:
        """Nothing that the program does may stop, read or outlast this process."""
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE):
            signal.signal(number, signal.SIG_IGN)
        with open("/proc/self/oom_score_adj", "w") as score:
            score.write("1000")
        if not self._alone:
            syscalls.adopt_orphans()
        syscalls.drop_capabilities()
        syscalls.set_dumpable(False)

    def _watch(self, child: int, began_s: float, feed: Feed, taps: list[Tap]) -> str:
        """Serves the program until it ends or must be ended; the reason."""
        ended = os.pidfd_open(child)
        poll = select.poll()
        poll.register(ended, select.POLLIN)
        poll.register(self._caller, select.POLLIN)
        feed.register(poll)
        for tap in taps:
            poll.register(tap.descriptor, select.POLLIN)
        deadline_s = began_s + self._limits["wall_s"]
        look_s = began_s + _LOOK_S
        while True:
            now_s = time.monotonic()
            if now_s >= deadline_s:
                return "deadline"
            ready = {d for d, _ in poll.poll(max(0.0, min(look_s, deadline_s) - now_s) * 1000)}
            if self._caller in ready:
                raise CallerGoneError
            if feed.descriptor in ready:
                feed.push(poll)
            for tap in taps:
                if tap.descriptor in ready and not tap.pull():
                    poll.unregister(tap.descriptor)
            if any(tap.cut for tap in taps):
                return "output"
            if ended in ready:
                return "ended"
            if time.monotonic() >= look_s:
                excess = self._look()
                if excess:
                    return excess
                look_s = time.monotonic() + _LOOK_S

    def _look(self) -> str | None:
        """The limit of the whole run that is exceeded, if any."""
        living = usage.family(usage.processes(), os.getpid())
        memory_bytes = sum(process.memory_bytes for process in living)
        self._peak_bytes = max(self._peak_bytes, memory_bytes)
        ended_s = usage.ended_children_cpu_s()
        self._cpu_s = max(self._cpu_s, ended_s + sum(process.cpu_s for process in living))
        self._reap()
        if memory_bytes > self._limits["memory_bytes"]:
            return "memory"
        if self._cpu_s >= self._limits["cpu_s"]:
            return "cpu"
        if not self._alone and len(living) > self._limits["processes"]:
            return "processes"
        return None

    def _reap(self) -> bool:
        """Takes the statuses of all that has ended; whether any child is left."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            self._statuses[pid] = status

    def _end(self) -> None:
        """Kills all that is left of the run, and waits for it.

        Without namespaces, gives up after a while on what does not die.
        """
        give_up_s = time.monotonic() + _HUNT_S
        while self._reap() and (self._alone or time.monotonic() < give_up_s):
            if self._alone:
                os.kill(-1, signal.SIGKILL)
            else:
                for process in usage.family(usage.processes(), os.getpid()):
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(process.pid, signal.SIGKILL)
            time.sleep(_KILL_PAUSE_S)
