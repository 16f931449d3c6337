"""A run's folder has one run at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from colocate.supervision.run_lock import RunFolderBusyError, RunLock

HOLDER = """
import sys
from pathlib import Path
from colocate.supervision.run_lock import RunLock
with RunLock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_folder_in_use_is_refused_with_its_holder_named(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with pytest.raises(RunFolderBusyError, match=rf"process {holder.pid}.*hydra\.run\.dir"):
        RunLock(tmp_path).__enter__()
    holder.kill()
    holder.communicate()
    with RunLock(tmp_path):
        pass


def test_a_folder_is_free_after_its_run(tmp_path: Path) -> None:
    with RunLock(tmp_path), pytest.raises(RunFolderBusyError):
        RunLock(tmp_path).__enter__()
    with RunLock(tmp_path), RunLock(tmp_path.parent):
        pass
