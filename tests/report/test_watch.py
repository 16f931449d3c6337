"""The watch page's server and what it shows, without a browser."""

from __future__ import annotations

import dataclasses
import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from colocate.core.phases import Phase
from colocate.report.live_file import LiveFile
from colocate.report.records import MetricsWriter
from colocate.report.snapshot import RunSnapshot
from colocate.report.sweep_manifest import ManifestJob, SweepManifest
from colocate.report.watch.server import Board, WatchServer
from colocate.report.watch.strip import strip_of_run
from colocate.report.watch.subject import Subject
from tests.sim.test_simulated_runs import BASE, simulate

MakeSnapshot = Callable[..., RunSnapshot]

STEP = {"lag_mean": 0.5, "lag_max": 1.0}
"""Of every line of metrics."""


@pytest.fixture
def growing(tmp_path: Path) -> Path:
    """A run's folder as it is while the run lasts."""
    folder = tmp_path / "run"
    folder.mkdir()
    simulate(folder, dataclasses.replace(BASE, steps=4))
    (folder / "summary.json").unlink()
    metrics = MetricsWriter(folder / "metrics.jsonl")
    for step in range(1, 4):
        metrics.write({**STEP, "step": step, "time_s": float(step), "reward_mean": 0.1 * step})
    metrics.close()
    return folder


@pytest.fixture
def subject(growing: Path, tmp_path: Path) -> Subject:
    target = tmp_path / "target"
    target.mkdir()
    return Subject(growing, target)


# What is watched


def test_the_page_is_drawn_when_files_change_and_only_then(
    growing: Path, subject: Subject, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("colocate.report.watch.subject.REST", 0.0)
    monkeypatch.setattr("colocate.report.watch.subject.MIN_WAIT_S", 0.0)
    before = {path: path.stat().st_mtime_ns for path in growing.rglob("*")}
    assert subject.draw()
    assert not subject.draw()
    assert subject.revision == 1
    assert 'id="reward"' in subject.page
    assert before == {path: path.stat().st_mtime_ns for path in growing.rglob("*")}
    metrics = MetricsWriter(growing / "metrics.jsonl")
    metrics.write({**STEP, "step": 4, "time_s": 4.0, "reward_mean": 0.4})
    metrics.close()
    old = subject.page
    assert subject.draw()
    assert subject.revision == 2
    assert subject.page != old


def test_a_drawing_is_followed_by_a_rest_that_the_runs_end_cuts_short(
    growing: Path, subject: Subject, summary: dict[str, Any]
) -> None:
    assert subject.draw()
    (growing / "metrics.jsonl").write_text("")
    assert not subject.draw()
    (growing / "summary.json").write_text(json.dumps(summary))
    assert subject.draw()
    assert '<span class="badge completed">' in subject.page


def test_a_report_that_cannot_be_drawn_is_told_and_tried_again(
    growing: Path, subject: Subject, summary: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> Path:
        raise RuntimeError("no <ink>")

    with monkeypatch.context() as patch:
        patch.setattr("colocate.report.run_report.write_run_report", broken)
        subject.draw()
    assert subject.revision == 0
    assert "RuntimeError: no &lt;ink&gt;" in subject.strip()
    (growing / "summary.json").write_text(json.dumps(summary))
    subject.draw()
    assert subject.revision == 1
    assert "ink" not in subject.strip()


def test_the_strip_tells_what_a_run_is_at(growing: Path, make_snapshot: MakeSnapshot) -> None:
    file = LiveFile(growing / "live.json")
    file.starting("starting vLLM")
    assert strip_of_run(growing).what == "starting vLLM"
    costs = {"swap_cost_s": 0.5, "mean_swap_cost_s": 0.75, "swap_share": 0.1}
    file.update(make_snapshot(warnings=("first", "second"), **costs))
    strip = strip_of_run(growing)
    assert (strip.status, strip.owner, strip.progress) == ("running", "training", 37.0)
    assert strip.what == "training: DeepSpeed takes a training step"
    assert strip.times == "2:14 elapsed, about 1:10 left"
    assert strip.warning == "second"
    told = {tile.name: (tile.value, tile.note) for tile in strip.tiles}
    assert told == {
        "reward": ("0.634", "best 0.660"),
        "requests in flight": ("128", "0 queued"),
        "environments busy": ("96", ""),
        "trajectories ready": ("64", "320 in training"),
        "trajectories trained": ("11.8k", "3 expired"),
        "staleness": ("up to 1", "91% of tokens fresh, at most 1 allowed"),
        "swap cost": ("0.50 s", "mean 0.75 s, 10% of the time, 37 swaps"),
        "tokens trained": ("110.0k", "123.5k generated, 4,200 carried over swaps"),
        "memory": ("800 of 900 MiB", ""),
    }
    (memory,) = [tile for tile in strip.tiles if tile.name == "memory"]
    assert [(part.name, part.percent) for part in memory.parts] == [
        ("engine", 33.33),
        ("trainer", 55.56),
    ]
    file.close()
    assert strip_of_run(growing).status == "interrupted"


def test_a_run_of_another_machine_is_not_called_dead(
    growing: Path, make_snapshot: MakeSnapshot
) -> None:
    LiveFile(growing / "live.json").update(make_snapshot(phase=Phase.ROLLOUT))
    told = json.loads((growing / "live.json").read_text())
    (growing / "live.json").write_text(json.dumps({**told, "host": "another.invalid"}))
    strip = strip_of_run(growing)
    assert strip.status == "running elsewhere"
    assert "on another.invalid" in strip.what


def test_a_folder_that_nothing_has_been_written_to_waits(tmp_path: Path) -> None:
    strip = strip_of_run(tmp_path)
    assert (strip.status, strip.what) == ("waiting", "nothing has been written yet")


def test_of_a_multirun_the_running_job_is_told(tmp_path: Path, make_snapshot: MakeSnapshot) -> None:
    sweep, target = tmp_path / "sweep", tmp_path / "target"
    target.mkdir()
    jobs = [
        ManifestJob(folder="0", label="job 0 (seed=0)", state="done"),
        ManifestJob(folder="1", label="job 1 (seed=1)", state="running"),
        ManifestJob(folder="2", label="job 2 (seed=2)"),
    ]
    manifest = SweepManifest(sweep, jobs)
    manifest.write()
    (sweep / "1").mkdir()
    LiveFile(sweep / "1" / "live.json").update(make_snapshot())
    subject = Subject(sweep, target)
    strip = subject.strip()
    assert "job 1 (seed=1): training: DeepSpeed takes a training step" in strip
    assert "1 done · 1 running · 1 waiting" in strip
    assert subject.draw()
    assert "0 of 3 jobs complete" in subject.page
    manifest.mark(1, "done")
    manifest.mark(2, "failed", "exit status 1")
    assert "badge failed" in subject.strip()
    assert "2 done · 1 failed" in subject.strip()
    assert not (sweep / "plots").exists()


# The server


@pytest.fixture
def board() -> Board:
    board = Board("colocate watch run")
    board.show("<p>strip</p>", "<html>report one</html>", 1)
    return board


@pytest.fixture
def server(board: Board) -> Iterator[WatchServer]:
    with WatchServer(board) as server:
        yield server


def ask(
    server: WatchServer, path: str, *, method: str = "GET", **headers: str
) -> http.client.HTTPResponse:
    where = urlsplit(server.url)
    connection = http.client.HTTPConnection(str(where.hostname), where.port, timeout=60)
    connection.request(method, path, headers=headers)
    return connection.getresponse()


def test_the_page_and_what_it_loads_are_served(server: WatchServer) -> None:
    page = ask(server, "/")
    text = page.read().decode()
    assert page.status == 200
    assert "<p>strip</p>" in text
    assert "<title>colocate watch run</title>" in text
    assert "default-src 'none'" in str(page.headers["Content-Security-Policy"])
    assert "new EventSource" in ask(server, "/watch.js").read().decode()
    report = ask(server, "/report")
    assert (report.headers["X-Revision"], report.read()) == ("1", b"<html>report one</html>")
    assert ask(server, "/etc/passwd").status == 404
    assert ask(server, "/../events.jsonl").status == 404


def test_only_this_machine_by_its_own_name_is_answered(server: WatchServer) -> None:
    assert server.url.startswith("http://127.0.0.1:")
    port = urlsplit(server.url).port
    # The other end of a tunnel may have another port.
    for host in (f"localhost:{port}", "127.0.0.1:9000", "localhost"):
        assert ask(server, "/", Host=host).status == 200
    for host in ("attacker.invalid", f"attacker.invalid:{port}", "127.0.0.1.attacker.invalid", ""):
        refused = ask(server, "/report", Host=host)
        assert refused.status == 403
        assert refused.read().startswith(b"This host is not served; ask for 127.0.0.1")
    assert ask(server, "/", method="POST").status == 501


def test_changes_are_sent_as_they_come_and_the_end_too(server: WatchServer, board: Board) -> None:
    stream = ask(server, "/events")
    assert stream.headers["Content-Type"] == "text/event-stream"

    def event() -> tuple[str, str]:
        name, data, end = (stream.readline().decode().rstrip("\n") for _ in range(3))
        assert end == ""
        return name.removeprefix("event: "), data.removeprefix("data: ")

    assert event() == ("strip", '"<p>strip</p>"')
    assert event() == ("report", "1")
    board.show("<p>later</p>", "<html>report one</html>", 1)
    assert event() == ("strip", '"<p>later</p>"')
    board.show("<p>later</p>", "<html>report two</html>", 2)
    assert event() == ("report", "2")
    board.end()
    assert event() == ("end", "0")
    assert stream.read() == b""


def test_there_is_no_report_before_the_first_is_drawn() -> None:
    board = Board("colocate watch run")
    board.show("<p>strip</p>", "", 0)
    with WatchServer(board) as server:
        assert ask(server, "/report").status == 404
        assert ask(server, "/").status == 200


def test_a_reader_that_does_not_read_holds_up_no_end(board: Board) -> None:
    with WatchServer(board) as server:
        stream = ask(server, "/events")
        assert stream.status == 200
    # Left while the stream is open.
    with pytest.raises(OSError):  # noqa: PT011
        ask(server, "/")


def test_a_port_that_is_taken_is_refused(server: WatchServer) -> None:
    port = urlsplit(server.url).port
    assert port is not None
    with pytest.raises(OSError, match="in use"):
        WatchServer(Board("another"), port)
