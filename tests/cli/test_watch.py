"""``colocate watch``: what it refuses, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from colocate.cli.main import main
from colocate.report.watch.subject import Subject
from tests.patience import patient

Run = Callable[[Sequence[str]], Any]


@pytest.mark.parametrize("folder", ["nothing", "empty"])
def test_a_folder_that_no_run_has_is_refused(
    colocate: Run, empty_folder: Path, folder: str
) -> None:
    (empty_folder / "empty").mkdir()
    outcome = colocate(["watch", folder])
    assert outcome.status == 2
    assert outcome.err.startswith(f"colocate watch: {folder} is neither a run's folder")
    assert "Traceback" not in outcome.err


@pytest.mark.parametrize("port", ["-1", "65536", "http"])
def test_a_port_that_is_none_is_refused(colocate: Run, empty_folder: Path, port: str) -> None:
    outcome = colocate(["watch", ".", f"--port={port}"])
    assert outcome.status == 2
    assert f"a port is a number from 0 to 65535, not {port}" in outcome.err


def watch(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "colocate.cli.main", "watch", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_has_only_begun_is_watched_until_a_signal(
    tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text("steps: 4\n")
    watcher = watch(str(tmp_path))
    assert watcher.stdout is not None
    line = watcher.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+/", line)
    assert found is not None, line
    until_s = time.monotonic() + patient(30)
    page = ""
    while "nothing has been written yet" not in page and time.monotonic() < until_s:
        with urllib.request.urlopen(found[0], timeout=60) as answer:
            page = answer.read().decode()
        time.sleep(0.1)
    assert "nothing has been written yet" in page
    watcher.send_signal(number)
    out, err = watcher.communicate(timeout=300)
    assert (watcher.returncode, out, err) == (0, "", "")
    assert [path.name for path in tmp_path.iterdir()] == [".hydra"]


def test_a_port_that_is_taken_is_named(tmp_path: Path, colocate: Run) -> None:
    (tmp_path / ".hydra").mkdir()
    watcher = watch(str(tmp_path))
    assert watcher.stdout is not None
    port = watcher.stdout.readline().split("/ (")[0].rpartition(":")[2]
    outcome = colocate(["watch", str(tmp_path), "--port", port])
    assert outcome.status == 2
    assert f"--port {port} cannot be used: Address already in use" in outcome.err
    watcher.send_signal(signal.SIGINT)
    watcher.communicate(timeout=300)
    assert watcher.returncode == 0


def test_a_page_that_cannot_be_drawn_ends_the_watching_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".hydra").mkdir()
    (tmp_path / ".hydra" / "config.yaml").write_text("steps: 4\n")

    def fail(subject: Subject) -> None:
        raise RuntimeError("no space left for the picture")

    monkeypatch.setattr(Subject, "draw", fail)
    monkeypatch.setattr(os, "nice", lambda by: by)  # of the tests' own process
    with pytest.raises(RuntimeError, match="no space left for the picture"):
        main(["watch", str(tmp_path)])
