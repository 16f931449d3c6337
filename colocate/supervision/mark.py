"""The mark by which every process of a run is known, wherever it ends up in the process tree.

A process of a run may be forked twice, start a session of its own, or lose its parent, so
ancestry cannot be relied on. Two marks are inherited instead, over ``fork`` and ``exec`` alike:

- the environment variable ``COLOCATE_RUN_ID``. It is missing in ``/proc`` for a process that was
  forked without ``exec``, and wiped by one that changes its title: vLLM's processes do both;
- a soft limit on real-time CPU time (``RLIMIT_RTTIME``) derived from the run's id. It has no
  effect: no process of a run is scheduled in real time, and the limit is thousands of years.
"""

from __future__ import annotations

import hashlib
import os
import re
import resource
from dataclasses import dataclass
from pathlib import Path

RUN_ID_VARIABLE = "COLOCATE_RUN_ID"
_RUN_ID = re.compile(r"[A-Za-z0-9_.-]{8,64}")


@dataclass(frozen=True, slots=True)
class Mark:
    """The marks of one run.

    Raises:
        ValueError: a run id that is short enough to be met by chance, or that is no plain name.
    """

    run_id: str

    def __post_init__(self) -> None:
        if not _RUN_ID.fullmatch(self.run_id):
            raise ValueError(
                f"run id {self.run_id!r} must be 8 to 64 letters, digits, '_', '.' or '-'"
            )

    @property
    def limit_us(self) -> int:
        """The soft limit, in microseconds: 60 bits of the id's hash, above any real limit."""
        digest = hashlib.sha256(self.run_id.encode()).digest()
        return 2**61 + int.from_bytes(digest[:8], "big") % 2**60

    def is_on(self, pid: int) -> bool:
        """Whether a process bears a mark. False too for one that ended or is another user's."""
        try:
            if resource.prlimit(pid, resource.RLIMIT_RTTIME)[0] == self.limit_us:
                return True
            environment = Path(f"/proc/{pid}/environ").read_bytes()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            return False
        return f"{RUN_ID_VARIABLE}={self.run_id}".encode() in environment.split(b"\0")


class MarkedProcess:
    """Puts a run's marks on this process, so that its children inherit them; takes them off again.

    Raises:
        RuntimeError: the machine's hard limit leaves no room for the mark.
    """

    def __init__(self, mark: Mark) -> None:
        self._mark = mark
        self._variable_before = os.environ.get(RUN_ID_VARIABLE)
        self._soft_before, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
        try:
            resource.setrlimit(resource.RLIMIT_RTTIME, (mark.limit_us, hard))
        except ValueError as error:
            raise RuntimeError(
                f"RLIMIT_RTTIME has the hard limit {hard} us, and a run marks its processes with "
                f"the soft limit {mark.limit_us} us; lift it (`ulimit -H -R unlimited`)"
            ) from error
        os.environ[RUN_ID_VARIABLE] = mark.run_id

    def restore(self) -> None:
        _, hard = resource.getrlimit(resource.RLIMIT_RTTIME)
        resource.setrlimit(resource.RLIMIT_RTTIME, (self._soft_before, hard))
        if self._variable_before is None:
            os.environ.pop(RUN_ID_VARIABLE, None)
        else:
            os.environ[RUN_ID_VARIABLE] = self._variable_before
