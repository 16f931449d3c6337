"""Pictures come from a run's files, whole or broken off."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from colocate.report.plots import running_mean, write_plots


def has_ink(path: Path) -> bool:
    """Whether a picture shows more than its frame: many colours, on a sensible size."""
    image = imread(path)
    return image.shape[0] > 300 and image.shape[1] > 600 and len(np.unique(image)) > 50


def test_a_run_has_three_pictures(run_dir: Path) -> None:
    paths = write_plots(run_dir, optimum=0.81)
    assert {path.name for path in paths} == {"reward.png", "phases.png", "staleness.png"}
    assert all(path.parent == run_dir / "plots" and has_ink(path) for path in paths)


def test_a_run_that_trained_nothing_shows_where_its_time_went(run_dir: Path) -> None:
    (run_dir / "metrics.jsonl").unlink()
    (run_dir / "trace.json").unlink()
    assert [path.name for path in write_plots(run_dir)] == ["phases.png"]


def test_a_killed_runs_trace_is_enough(run_dir: Path) -> None:
    trace = run_dir / "trace.json"
    trace.write_text(trace.read_text()[:-40])
    assert len(write_plots(run_dir)) == 3


def test_one_training_step_is_enough(run_dir: Path) -> None:
    metrics = run_dir / "metrics.jsonl"
    metrics.write_text(metrics.read_text().split("\n")[0] + "\n")
    assert len(write_plots(run_dir)) == 3


def test_a_run_without_any_phase_time_can_be_drawn(run_dir: Path) -> None:
    path = run_dir / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps({**summary, "phase_s": dict.fromkeys(summary["phase_s"], 0.0)}))
    assert len(write_plots(run_dir)) == 3


def test_a_running_mean_starts_with_what_there_is() -> None:
    assert running_mean([1.0, 3.0, 5.0, 7.0], 2) == pytest.approx([1.0, 2.0, 4.0, 6.0])
