"""``colocate chat --engine vllm``: the trained weights answer, and no process is left behind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.trained_run import configure, greedy, leave_run

pytestmark = pytest.mark.engine

PROMPT = "0-9?\n"


def test_vllm_answers_as_the_trained_weights_do(tmp_path: Path) -> None:
    configure(leave_run(tmp_path))
    command = [sys.executable, "-m", "colocate.cli.main", "chat", str(tmp_path / "run")]
    # Its output is read to the end, which comes only once every process that has it is gone.
    outcome = subprocess.run(
        [*command, f"--prompt={PROMPT}", "--temperature=0", "--engine=vllm"],
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert outcome.stdout == greedy(tmp_path / "trained", PROMPT, 3) + "\n"
