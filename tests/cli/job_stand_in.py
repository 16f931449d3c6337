"""A command line whose runs are small stand-ins, for tests of what surrounds a run.

``python job_stand_in.py train ARGUMENTS`` behaves as ``colocate train ARGUMENTS`` but for the run
itself, which does what its seed says.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from colocate.cli.multirun import stop_with_parent
from colocate.cli.train import run_job, train
from colocate.config import RunConfig
from colocate.problems import ConfigurationError

FAILS, CRASHES, LEAVES_A_PROCESS, WAITS, FINDS_NO_OTHER, FAILS_ONCE = 1, 2, 3, 4, 5, 6
LEFT_BEHIND = "import time; time.sleep(600)"


def run(config: RunConfig, run_dir: Path) -> int:
    if config.seed == FAILS:
        summary = {"status": "failed", "error": "the reward was not a number"}
        (run_dir / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
        return 1
    if config.seed == CRASHES:
        signal.raise_signal(signal.SIGKILL)
    if config.seed == LEAVES_A_PROCESS:
        left = subprocess.Popen([sys.executable, "-c", LEFT_BEHIND], start_new_session=True)
        (run_dir.parent / "left.pid").write_text(str(left.pid), encoding="utf-8")
    if config.seed == WAITS:
        signal.signal(signal.SIGINT, lambda *_: sys.exit(130))
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
        print("waiting", flush=True)
        time.sleep(600)
    if config.seed == FINDS_NO_OTHER:
        left_pid = (run_dir.parent / "left.pid").read_text(encoding="utf-8")
        return 1 if Path(f"/proc/{left_pid}").exists() else 0
    if config.seed == FAILS_ONCE and not (run_dir.parent / "superseded").exists():
        (run_dir / "summary.json").write_text('{"status": "failed", "error": "the first time"}')
        return 1
    (run_dir / "summary.json").write_text('{"status": "completed", "error": null}')
    return 0


def job_command(run_dir: Path) -> Sequence[str]:
    return [sys.executable, __file__, "job", str(run_dir)]


if __name__ == "__main__":
    if sys.argv[1] == "job":
        stop_with_parent()
        sys.exit(run_job(Path(sys.argv[2]), run=run))
    try:
        status = train(sys.argv[2:], run=run, job_command=job_command, grace_s=0.2)
    except ConfigurationError as error:
        sys.stderr.write(f"{error}\n")
        status = 2
    sys.exit(status)
