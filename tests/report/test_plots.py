"""Pictures come from a run's files, whole or broken off."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

from colocate.report.plots import Figures, figures_of, write_plots
from colocate.report.run_files import Intervals, read_run
from colocate.report.style import NARROW, WIDE, Sheet, running_mean
from colocate.report.sweep_jobs import read_sweep
from colocate.report.sweep_measures import common_budget, group_jobs, learned
from colocate.report.sweep_plots import figures_of as figures_of_sweep
from colocate.report.timeline_plot import concurrency


def has_ink(path: Path) -> bool:
    """Whether a picture shows more than its frame: many colours, on a sensible size."""
    image = imread(path)
    return image.shape[0] > 300 and image.shape[1] > 600 and len(np.unique(image)) > 50


def drawn(run_dir: Path) -> set[str]:
    return set(write_plots(read_run(run_dir)))


WHOLE = {"reward", "phases", "timeline", "staleness", "mismatch"}


def test_a_run_has_its_pictures(run_dir: Path) -> None:
    plots = write_plots(read_run(run_dir), optimum=0.81)
    assert set(plots) == WHOLE
    for name, plot in plots.items():
        assert plot.path == run_dir / "plots" / f"{name}.png"
        assert has_ink(plot.path)
        assert plot.says


def test_a_run_that_trained_nothing_shows_where_its_time_went(run_dir: Path) -> None:
    (run_dir / "metrics.jsonl").unlink()
    (run_dir / "trace.json").unlink()
    assert drawn(run_dir) == {"phases"}


def test_a_killed_runs_trace_is_enough(run_dir: Path) -> None:
    trace = run_dir / "trace.json"
    trace.write_text(trace.read_text()[:-40])
    assert drawn(run_dir) == WHOLE


def test_one_training_step_is_enough_and_without_fresh_tokens_shows_no_mismatch(
    run_dir: Path,
) -> None:
    metrics = run_dir / "metrics.jsonl"
    metrics.write_text(metrics.read_text().split("\n")[0] + "\n")
    assert drawn(run_dir) == WHOLE - {"mismatch"}


def test_a_run_without_any_phase_time_can_be_drawn(run_dir: Path) -> None:
    path = run_dir / "summary.json"
    summary = json.loads(path.read_text())
    path.write_text(json.dumps({**summary, "phase_s": dict.fromkeys(summary["phase_s"], 0.0)}))
    assert drawn(run_dir) == WHOLE


def assert_nothing_is_cut(figures: Figures, sheet: Sheet) -> None:
    for name, (figure, _) in figures.items():
        figure.draw_without_rendering()
        ink, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert width == sheet.width_in
        inside = ink.x0 >= 0 and ink.y0 >= 0 and ink.x1 <= width and ink.y1 <= height
        assert inside, f"{name} reaches beyond {width} x {height} inches: {ink.extents}"


@pytest.mark.parametrize("sheet", [WIDE, NARROW])
def test_nothing_is_cut_off_on_a_wide_or_a_narrow_sheet(whole_run: Path, sheet: Sheet) -> None:
    figures = figures_of(read_run(whole_run), sheet, optimum=0.81)
    assert set(figures) == {*WHOLE, "swaps", "longest"}
    assert_nothing_is_cut(figures, sheet)


@pytest.mark.parametrize("sheet", [WIDE, NARROW])
def test_nothing_of_a_sweeps_pictures_is_cut_off(sweep: Path, sheet: Sheet) -> None:
    jobs = read_sweep(sweep)
    groups, budget = group_jobs(jobs), common_budget(jobs)
    assert budget is not None
    found = {point: each for point, each in learned(groups, budget).items() if each is not None}
    figures = figures_of_sweep(groups, budget, found, sheet)
    assert set(figures) == {"pareto", "reward_by_time", "reward_by_trajectories", "learning"}
    assert_nothing_is_cut(figures, sheet)


def test_a_running_mean_starts_with_what_there_is() -> None:
    assert running_mean([1.0, 3.0, 5.0, 7.0], 2) == pytest.approx([1.0, 2.0, 4.0, 6.0])


def test_steps_that_measured_the_mismatch_show_it(run_dir: Path) -> None:
    path = run_dir / "metrics.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row in rows[::2]:
        row["mismatch_mean_abs_logprob_diff"] = 1e-6
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert drawn(run_dir) == WHOLE | {"mismatch"}


def test_concurrency_counts_what_is_open_and_what_never_ended() -> None:
    intervals = Intervals()
    intervals.starts_s.extend([3.0, 1.0, 2.0])
    intervals.ends_s.extend([2.5, 4.0])
    times = np.array([0.5, 1.0, 2.2, 2.7, 3.5, 9.0])
    assert list(concurrency(intervals, times)) == [0, 1, 2, 1, 2, 1]
