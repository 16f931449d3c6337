"""Evaluations on the terminal, in the ending and in the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from colocate.report.display import PlainDisplay
from colocate.report.ending import run_facts
from colocate.report.panel import RunPanel
from colocate.report.plots import write_plots
from colocate.report.run_files import read_run
from colocate.report.run_report import write_run_report
from colocate.report.snapshot import RunSnapshot
from colocate.report.timeline import DeviceTimeline
from colocate.report.words import evaluation_words

MakeSnapshot = Callable[..., RunSnapshot]

FIRST = {
    "step": 0,
    "pass@1": 0.25,
    "pass@1_low": 0.125,
    "pass@1_high": 0.5,
    "pass@4": 0.5,
    "reward_mean": 0.3,
    "num_prompts": 16.0,
}
LAST = {**FIRST, "step": 10, "pass@1": 0.75, "pass@1_low": 0.5, "pass@1_high": 0.875}
BEST = {**LAST, "step": 5, "pass@1": 0.8}
EVALUATED = {
    "evaluations": 3,
    "cut": {},
    "samples": {"scored": 48, "lost": 0, "cut": 0},
    "lost": {},
    "first": FIRST,
    "last": LAST,
    "best": BEST,
}


def test_an_evaluation_is_told_in_one_line_with_its_intervals() -> None:
    assert (
        evaluation_words(FIRST) == "pass@1 0.250 (0.125 to 0.500), pass@4 0.500, mean reward 0.300"
    )


def test_plain_lines_tell_each_evaluation_once(make_snapshot: MakeSnapshot) -> None:
    console = Console(record=True, width=200)
    display = PlainDisplay(console, "a run")
    for _ in range(2):
        display.update(make_snapshot(evaluation=FIRST))
    display.update(make_snapshot(evaluation=LAST))
    lines = [line for line in console.export_text().splitlines() if "evaluation" in line]
    assert len(lines) == 2
    assert lines[0].startswith("evaluation after step 0: pass@1 0.250")
    assert lines[1].startswith("evaluation after step 10: pass@1 0.750")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"evaluation": FIRST}, "pass@1 0.250"),
        ({"evaluation": LAST}, "after step 10"),
        ({"is_evaluating": True}, "going on; the swap waits for it"),
    ],
)
def test_the_panel_shows_it(
    make_snapshot: MakeSnapshot, fields: dict[str, Any], expected: str
) -> None:
    console = Console(record=True, width=160)
    console.print(RunPanel(make_snapshot(**fields), DeviceTimeline(), "a run"))
    assert expected in " ".join(console.export_text().split())


def test_the_ending_compares_the_first_with_the_last_and_names_the_best(
    summary: dict[str, Any],
) -> None:
    facts = dict(run_facts({**summary, "eval": EVALUATED}, []))
    assert facts["evaluation, step 0"].startswith("pass@1 0.250")
    assert facts["evaluation, step 10"].startswith("pass@1 0.750")
    assert facts["the best, step 5"].startswith("pass@1 0.800")
    assert "without a verdict" not in facts


def test_the_ending_says_what_has_no_verdict_and_why(summary: dict[str, Any]) -> None:
    cut = {
        **EVALUATED,
        "cut": {"eval.timeout_s = 1.0": 1},
        "samples": {"scored": 40, "lost": 2, "cut": 6},
        "lost": {"it broke": 2},
    }
    facts = dict(run_facts({**summary, "eval": cut}, []))
    assert facts["without a verdict"] == "2 lost, 6 cut (most often: eval.timeout_s = 1.0)"


@pytest.mark.parametrize("evaluated", [None, {**EVALUATED, "first": None, "last": None}])
def test_a_run_that_evaluated_nothing_says_nothing(
    summary: dict[str, Any], evaluated: dict[str, Any] | None
) -> None:
    facts = dict(run_facts({**summary, "eval": evaluated}, []))
    assert not [label for label in facts if "evaluation" in label]


def test_the_report_has_the_curve_where_there_are_evaluations(run_dir: Path) -> None:
    assert "evaluation" not in write_plots(read_run(run_dir))
    rows = [FIRST, BEST, LAST]
    (run_dir / "eval.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    run = read_run(run_dir)
    assert run.evaluations == rows
    assert not [note for note in run.notes if "eval" in note]
    plot = write_plots(run)["evaluation"]
    assert plot.path.stat().st_size > 5_000
    page = write_run_report(run_dir).read_text()
    assert 'id="evaluation"' in page


def test_a_broken_file_of_evaluations_is_noted(run_dir: Path) -> None:
    (run_dir / "eval.jsonl").write_text("{\n")
    run = read_run(run_dir)
    assert run.evaluations == []
    assert [note for note in run.notes if note.startswith("eval.jsonl could not be read")]
