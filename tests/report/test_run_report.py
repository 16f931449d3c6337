"""``report.html`` of a run: one file, whatever the run left, and what it left cannot break it."""

from __future__ import annotations

import dataclasses
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colocate.journal import read_journal
from colocate.report.history import Decision
from colocate.report.live_file import LiveFile
from colocate.report.run_files import read_run, summary_of_journal
from colocate.report.run_report import write_run_report
from colocate.report.swap_tables import decision_table, swap_cost_table
from colocate.report.transcripts import TextSpan, Turn, write_transcripts
from tests.report.folders import sample
from tests.sim.test_simulated_runs import simulate


def page_of(folder: Path) -> str:
    path = write_run_report(folder)
    assert path == folder / "report.html"
    return path.read_text(encoding="utf-8")


def headings(page: str) -> list[str]:
    return re.findall(r"<h2[^>]*>(.*?)</h2>", page)


def test_a_run_is_told_on_one_page_that_needs_nothing_else(whole_run: Path) -> None:
    page = page_of(whole_run)
    assert headings(page) == [
        "What it was",
        "What came of it",
        "Reward",
        "Timeline",
        "Phases and swaps",
        "Why each swap",
        "Staleness",
        "Mismatch between the engines",
        "How trajectories ended",
        "The longest trajectories",
        "Transcripts",
    ]
    for told in (
        "12 training steps in 1:33",
        "colocate train +experiment=quickstart steps=12",
        "colocate 0.0, torch 2.13.0",
        "policy timed",
        "384 trained",
        "Training step 6",
    ):
        assert told in page
    assert not re.findall(r"(?:src|srcset|href)=\"(?!data:image/png|#)", page)
    assert page.count("<img ") == page.count("<source ") == 7
    assert page.count("data:image/png;base64,") == 14


def test_what_an_agent_wrote_is_shown_and_never_run(whole_run: Path) -> None:
    page = page_of(whole_run)
    assert "<script" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\x1b" not in page


def test_what_an_agent_wrote_is_coloured_by_the_weights_that_sampled_it(whole_run: Path) -> None:
    spans = [TextSpan(version, 1) for version in range(3, 11)]
    turns = [Turn("prompt", "0-9?"), Turn("agent", "abc<efghi\n", [*spans, TextSpan(11, 2)])]
    several = dataclasses.replace(sample(12), turns=turns)
    write_transcripts(whole_run / "trajectories", 12, [several])
    page = page_of(whole_run)
    assert 'title="sampled by the weights of version 6">&lt;</span>' in page
    # Of more versions than there are colours, the newest have one of their own.
    classes = re.findall(r'class="by by(\d)" title="[^"]*version (\d+)"', page)
    assert classes == [
        ("0", "3"), ("0", "4"), ("0", "5"), ("0", "6"),
        ("1", "7"), ("2", "8"), ("3", "9"), ("4", "10"), ("5", "11"),
    ]  # fmt: skip
    assert "trajectory 12: reward 0.500, trained, by weights of" in page


def test_a_run_that_goes_on_is_told_as_one(whole_run: Path) -> None:
    (whole_run / "summary.json").unlink()
    file = LiveFile(whole_run / "live.json")
    file.starting("up")
    page = page_of(whole_run)
    assert '<span class="badge running">' in page
    assert "is missing" not in page
    assert "the run goes on; figures are worked out from its journal" in page
    file.close()
    page = page_of(whole_run)
    assert '<span class="badge running">' not in page
    assert "figures were worked out from the journal: the run was killed" in page


def test_a_page_can_be_written_elsewhere(whole_run: Path, tmp_path_factory: Any) -> None:
    before = sorted(whole_run.rglob("*"))
    target = tmp_path_factory.mktemp("target")
    assert write_run_report(whole_run, target=target) == target / "report.html"
    assert sorted(whole_run.rglob("*")) == before
    assert (target / "plots" / "reward.png").exists()


def test_a_failed_run_says_why_first(whole_run: Path, summary: dict[str, Any]) -> None:
    failed = {**summary, "status": "failed", "error": "rank 1 <ended>", "warnings": ["it grows"]}
    (whole_run / "summary.json").write_text(json.dumps(failed))
    page = page_of(whole_run)
    assert "rank 1 &lt;ended&gt;" in page
    assert page.index("rank 1") < page.index("Warning: it grows") < page.index("<h2")
    assert '<span class="badge failed">' in page


def test_a_killed_runs_figures_are_worked_out_from_its_journal(whole_run: Path) -> None:
    (whole_run / "summary.json").unlink()
    journal = whole_run / "events.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[: len(lines) // 2]) + lines[-1][:20])
    page = page_of(whole_run)
    assert '<span class="badge interrupted">' in page
    assert "summary.json is missing" in page
    assert "figures were worked out from the journal" in page
    assert "What came of it" in headings(page)


def test_a_journal_tells_the_same_as_the_summary_that_the_run_wrote(tmp_path: Path) -> None:
    simulation, _ = simulate(tmp_path)
    found = summary_of_journal(tmp_path / "events.jsonl")
    assert found is not None
    assert found["status"] == "completed"
    assert {key: found[key] for key in simulation.scheduler.summary()} == (
        simulation.scheduler.summary()
    )


def drop(name: str) -> Callable[[Path], None]:
    def how(folder: Path) -> None:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return how


def spoil(name: str, content: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(content) and None


FILES = ("summary.json", "metrics.jsonl", "trace.json", "events.jsonl", ".hydra", "trajectories")


@pytest.mark.parametrize("name", FILES)
def test_a_page_is_made_without_any_one_of_the_files(whole_run: Path, name: str) -> None:
    drop(name)(whole_run)
    page = page_of(whole_run)
    missing = ".hydra/config.yaml" if name == ".hydra" else name
    assert f"Note: {missing} is missing" in page


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", '{"status": "fai'),
        ("summary.json", "[1]"),
        ("metrics.jsonl", "{broken\n{}\n"),
        ("trace.json", "[\nnothing\nof use\n"),
        ("events.jsonl", '{"seq": 7}\n'),
        (".hydra/config.yaml", "a: [\n"),
        ("trajectories/step_000001.parquet", "no parquet"),
    ],
)
def test_a_page_is_made_with_any_one_of_the_files_broken(
    whole_run: Path, name: str, content: str
) -> None:
    spoil(name, content)(whole_run)
    page = page_of(whole_run)
    assert f"Note: {name.partition('/step')[0]} could not be read" in page


def test_a_folder_with_hardly_anything_still_makes_a_page(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"status": "failed", "error": "no engine"}')
    page = page_of(tmp_path)
    assert "no engine" in page
    assert headings(page) == ["What it was"]


def test_the_costs_of_swaps_are_added_up_by_phase() -> None:
    decisions = [
        Decision(1.0, 1.0, phase_s={"parking": 0.5, "training": 2.0, "publishing": 1.0}),
        Decision(2.0, 1.0, phase_s={"parking": 1.5, "training": 4.0, "publishing": 2.0}),
    ]
    table = swap_cost_table(decisions)
    assert table is not None
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["parking"] == ["1.000", "1.000", "1.450", "1.500", "2.000"]
    assert rows["training"][0] == "3.000"
    assert rows["swap without training"][0] == "2.500"
    assert swap_cost_table([]) is None


def test_a_decisions_numbers_have_a_column_each_with_their_units(tmp_path: Path) -> None:
    facts = {"peak_bytes": 3 << 20, "wait_value_s": 0.12345, "mode": "kv", "parts": ("a", "b")}
    later = Decision(7.0, 3.0, batches=[1, 2], facts={"peak_bytes": None})
    table = decision_table([Decision(4.0, 3.0, facts=facts), later])
    assert table is not None
    titles = [column.title for column in table.columns]
    assert titles[-4:] == ["peak", "wait value, s", "mode", "parts"]
    assert list(table.rows[0][-4:]) == ["3 MiB", "0.1235", "kv", "a, b"]
    assert list(table.rows[1][-4:]) == ["-", "-", "-", "-"]
    assert table.rows[0][3] == "none"
    assert table.rows[1][3] == "1, 2"


def test_reading_a_run_changes_nothing_in_its_folder(whole_run: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in whole_run.rglob("*")}
    read_run(whole_run)
    assert {path: path.stat().st_mtime_ns for path in whole_run.rglob("*")} == before
    assert list(read_journal(whole_run / "events.jsonl"))
