"""``live.json`` says what a run is at, and whether it still is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from colocate.core.phases import Phase
from colocate.report.display import NoDisplay
from colocate.report.live_file import Both, LiveFile, has_process, read_live
from colocate.report.snapshot import RunSnapshot

MakeSnapshot = Callable[..., RunSnapshot]


def test_what_is_written_is_what_is_read(tmp_path: Path, make_snapshot: MakeSnapshot) -> None:
    file = LiveFile(tmp_path / "live.json")
    file.starting("starting vLLM")
    live = read_live(tmp_path)
    assert live is not None
    assert (live.what, live.snapshot, live.is_alive) == ("starting vLLM", None, True)
    file.update(make_snapshot())
    live = read_live(tmp_path)
    assert live is not None
    assert live.snapshot == make_snapshot()
    assert [path.name for path in tmp_path.iterdir()] == ["live.json"]


def test_each_change_of_phase_is_written_and_little_between(
    tmp_path: Path, make_snapshot: MakeSnapshot
) -> None:
    file = LiveFile(tmp_path / "live.json")
    seen = []
    for phase in (Phase.ROLLOUT, Phase.PARKING, Phase.TRAINING):
        for step in range(50):
            file.update(make_snapshot(phase=phase, step=step))
            live = read_live(tmp_path)
            assert live is not None
            assert live.snapshot is not None
            seen.append((live.snapshot.phase, live.snapshot.step))
    phases = [phase for phase, _ in seen]
    assert phases == [Phase.ROLLOUT] * 50 + [Phase.PARKING] * 50 + [Phase.TRAINING] * 50
    assert len(set(seen)) < 10


def test_a_run_that_has_ended_leaves_none(tmp_path: Path, make_snapshot: MakeSnapshot) -> None:
    display = Both(NoDisplay(), LiveFile(tmp_path / "live.json"))
    display.update(make_snapshot())
    assert has_process(tmp_path)
    display.finished("the end")
    display.close()
    assert not list(tmp_path.iterdir())
    assert not has_process(tmp_path)


def test_a_run_that_was_killed_does_not_go_on(tmp_path: Path) -> None:
    script = """
import os, signal, sys
from pathlib import Path
from colocate.report.live_file import LiveFile
LiveFile(Path(sys.argv[1])).starting("up")
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "live.json")], timeout=300)
    live = read_live(tmp_path)
    assert live is not None
    assert live.is_alive is False


def test_a_run_that_was_killed_and_that_nobody_has_taken_note_of_does_not_go_on(
    tmp_path: Path,
) -> None:
    script = (
        "import os, pathlib, signal, sys\n"
        "from colocate.report.live_file import LiveFile\n"
        "LiveFile(pathlib.Path(sys.argv[1])).starting('x')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path / "live.json")]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert read_live(tmp_path) is not None
        assert not has_process(tmp_path)


def test_a_clock_that_was_set_a_little_takes_no_run_for_dead(tmp_path: Path) -> None:
    LiveFile(tmp_path / "live.json").starting("x")
    told = json.loads((tmp_path / "live.json").read_text())
    told["process_began_s"] += 1.0
    (tmp_path / "live.json").write_text(json.dumps(told))
    assert has_process(tmp_path)


def test_another_process_with_the_number_of_the_runs_is_not_the_run(tmp_path: Path) -> None:
    LiveFile(tmp_path / "live.json").starting("up")
    told = json.loads((tmp_path / "live.json").read_text())
    (tmp_path / "live.json").write_text(json.dumps({**told, "process_began_s": 12.5}))
    assert not has_process(tmp_path)


def test_of_a_run_on_another_machine_nobody_can_tell(tmp_path: Path) -> None:
    LiveFile(tmp_path / "live.json").starting("up")
    told = json.loads((tmp_path / "live.json").read_text())
    (tmp_path / "live.json").write_text(json.dumps({**told, "host": "another.invalid"}))
    live = read_live(tmp_path)
    assert live is not None
    assert live.is_alive is None
    assert not has_process(tmp_path)


def test_a_file_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    assert read_live(tmp_path) is None
    (tmp_path / "live.json").write_text('{"what": 3')
    assert read_live(tmp_path) is None


def test_a_folder_that_cannot_be_written_any_more_stops_no_run(
    tmp_path: Path, make_snapshot: MakeSnapshot, caplog
) -> None:
    file = LiveFile(tmp_path / "gone" / "live.json")
    file.starting("up")
    file.update(make_snapshot())
    file.close()
    assert len(caplog.records) == 1
    assert "cannot be written" in caplog.text
