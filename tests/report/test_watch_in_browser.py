"""The watch page in a real browser: it shows what changes, and its console has no complaint."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colocate.core.phases import Phase
from colocate.report.live_file import LiveFile
from colocate.report.records import MetricsWriter
from colocate.report.snapshot import RunSnapshot
from colocate.report.watch.server import Board, WatchServer
from colocate.report.watch.subject import Subject
from tests.report.browser import Browser
from tests.sim.test_simulated_runs import BASE, simulate

STEP = {"lag_mean": 0.5, "lag_max": 1.0}
"""Of every line of metrics."""


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "run"
    folder.mkdir()
    simulate(folder, dataclasses.replace(BASE, steps=4))
    (folder / "summary.json").unlink()
    hydra = folder / ".hydra"
    hydra.mkdir()
    (hydra / "config.yaml").write_text("steps: 4\n")
    return folder


def log(run: Path, step: int) -> None:
    metrics = MetricsWriter(run / "metrics.jsonl")
    metrics.write({**STEP, "step": step, "time_s": float(step), "reward_mean": 0.1 * step})
    metrics.close()


def text_of(selector: str) -> str:
    return f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"


def test_a_run_is_seen_to_grow_and_to_end(
    run: Path,
    browser: Browser,
    make_snapshot: Callable[..., RunSnapshot],
    summary: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("colocate.report.watch.subject.REST", 0.0)
    monkeypatch.setattr("colocate.report.watch.subject.MIN_WAIT_S", 0.0)
    (tmp_path / "target").mkdir()
    subject, board = Subject(run, tmp_path / "target"), Board("colocate watch run")
    live = LiveFile(run / "live.json")

    def look() -> None:
        subject.draw()
        board.show(subject.strip(), subject.page, subject.revision)

    live.update(make_snapshot())
    log(run, 1)
    board.show(subject.strip(), "", 0)
    with WatchServer(board) as server:
        browser.open(server.url)
        assert "step 37 of 100" in browser.evaluate(text_of(".head"))
        look()
        browser.wait_for("document.querySelectorAll('#report img').length > 2")
        browser.evaluate("document.querySelector('#report details').open = true")
        reward = browser.evaluate("document.querySelector('img[alt*=eward]').src")

        live.update(make_snapshot(step=38, phase=Phase.ROLLOUT))
        log(run, 2)
        look()
        browser.wait_for(f"({text_of('.head')}).includes('step 38 of 100')")
        browser.wait_for("document.querySelector('#report').dataset.revision === '2'")
        assert browser.evaluate("document.querySelector('img[alt*=eward]').src") != reward
        assert browser.evaluate("document.querySelector('#report details').open")

        live.close()
        (run / "summary.json").write_text(json.dumps(summary))
        look()
        browser.wait_for("document.querySelector('.head .badge.completed') !== null")
        browser.wait_for("document.querySelector('#report .badge.completed') !== null")
        for width in (1280, 390):
            browser.resize(width, 900)
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
    browser.wait_for(f"({text_of('body')}).includes('has ended; this is what it showed last')")
    assert browser.faults == []


def test_a_page_that_runs_nothing_of_what_a_run_wrote(
    browser: Browser, run: Path, tmp_path: Path
) -> None:
    (tmp_path / "target").mkdir()
    subject = Subject(run, tmp_path / "target")
    attack = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    board = Board("colocate watch run")
    # As if what was to be escaped had not been.
    board.show(subject.strip(), f"<html><body><p>the report{attack}</p></body></html>", 1)
    with WatchServer(board) as server:
        browser.open(server.url)
        browser.wait_for(f"({text_of('#report')}).includes('the report')")
        browser.evaluate("new Promise((go) => setTimeout(go, 300))")
        assert browser.evaluate("document.title") != "owned"
    assert any("Content Security Policy" in fault for fault in browser.faults)
