"""A multirun's jobs are compared by setting, and none of them is lost on the way."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from colocate.report.main import report
from colocate.report.statistics import estimate
from colocate.report.sweep_jobs import (
    NOT_STARTED,
    SweepJob,
    parse_overrides,
    read_sweep,
    swept_keys,
)
from colocate.report.sweep_measures import (
    common_budget,
    group_jobs,
    learned,
    measure,
    reward_after,
    summarise,
)
from tests.report.folders import rows


def job(
    summary: dict[str, Any],
    rewards: list[float],
    name: str = "0",
    status: str = "completed",
    **overrides: str,
) -> SweepJob:
    return SweepJob(
        name=name, overrides=overrides, status=status, summary=summary, metrics=rows(rewards)
    )


def test_a_jobs_measures_are_those_of_its_summary(summary: dict[str, Any]) -> None:
    # phase_s is 1, 2, ..., 11 in the order of the phases: starting 1, rollout 2, training 6,
    # closing 11; the other swap phases 3 + 4 + 5 + 7 + 8 + 9 + 10 = 46; at work 66 - 12 = 54.
    found = measure(job(summary, [0.2, 0.4]))
    assert found["throughput"] == pytest.approx(384 / 54)
    assert found["rollout_share"] == pytest.approx(2 / 54)
    assert found["training_share"] == pytest.approx(6 / 54)
    assert found["swap_share"] == pytest.approx(46 / 54)
    assert found["hidden"] == pytest.approx(0.25)
    assert found["expired_share"] == pytest.approx(5 / 420)
    assert found["reward_end"] == pytest.approx(0.3)
    assert (found["mean_lag"], found["max_lag"], found["swaps"]) == (0.1, 1, 12.0)


def test_a_step_that_trained_replays_alone_has_no_reward_to_judge_a_job_by(
    summary: dict[str, Any],
) -> None:
    one = job(summary, [0.2, 0.9, 0.4])
    del one.metrics[1]["reward_mean"]
    assert measure(one)["reward_end"] == pytest.approx(0.3)
    assert reward_after(one, 30) == pytest.approx(0.4)


def test_repetitions_differ_by_seed_only_and_settings_stand_in_the_order_of_numbers(
    summary: dict[str, Any],
) -> None:
    jobs = [
        job(summary, [reward], same="x", seed=seed, bound=bound)
        for bound in ("10", "2")
        for seed, reward in (("0", 0.2), ("1", 0.4), ("2", 0.6))
    ]
    groups = group_jobs(jobs)
    assert swept_keys(jobs) == ["bound"]
    # What a job that has not begun was to be given is not known.
    waiting = SweepJob(name="6", overrides={}, status=NOT_STARTED)
    assert swept_keys([*jobs, waiting]) == ["bound"]
    assert [group.label for group in groups] == ["bound=2", "bound=10"]
    assert [len(group.jobs) for group in groups] == [3, 3]
    assert summarise(groups[0])["reward_end"] == estimate([0.2, 0.4, 0.6])


def test_jobs_that_did_not_complete_take_no_part_in_the_figures(summary: dict[str, Any]) -> None:
    jobs = [
        job(summary, [0.5] * 4, seed="0"),
        job(summary, [0.9], seed="1", status="failed"),
    ]
    (group,) = group_jobs(jobs)
    assert len(group.jobs) == 1
    assert common_budget(jobs) == 40


def test_rewards_are_compared_after_the_same_number_of_trained_trajectories(
    summary: dict[str, Any],
) -> None:
    # Ten trajectories a step; a quarter of eight steps is two.
    rising = job(summary, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9])
    assert reward_after(rising, 80) == pytest.approx((0.7 + 0.8) / 2)
    assert reward_after(rising, 89) == pytest.approx((0.7 + 0.8) / 2)
    assert reward_after(rising, 30) == pytest.approx(0.3)
    assert reward_after(rising, 91) is None
    assert reward_after(rising, 9) is None
    long = job(summary, [0.0] * 50 + [1.0] * 10)
    assert reward_after(long, 600) == pytest.approx(1.0)
    assert reward_after(long, 590) == pytest.approx(0.9)
    groups = group_jobs([rising])
    assert learned(groups, 80) == {(): estimate([0.75])}
    assert learned(groups, 10_000) == {(): None}


def test_overrides_are_read_as_hydra_saves_them() -> None:
    assert parse_overrides(["+experiment=x", "a.b=1", "c='p=q'", "~d"]) == {
        "experiment": "x",
        "a.b": "1",
        "c": "'p=q'",
        "d": "",
    }


def test_every_job_is_listed_with_what_became_of_it(sweep: Path) -> None:
    statuses = {each.name: each.status for each in read_sweep(sweep)}
    assert statuses == {
        "0": "completed",
        "1": "completed",
        "2": "completed",
        "3": "failed",
        "4": "interrupted",
        "5": NOT_STARTED,
    }


def test_a_sweeps_page_pictures_and_tables_are_written(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(sweep) == 0
    assert f"Report: {sweep / 'report.html'}" in capsys.readouterr().out
    page = (sweep / "report.html").read_text(encoding="utf-8")
    for told in ("3 of 6 jobs complete", "rank 0 ended | badly", "job 5", "<strong>120</strong>"):
        assert told in page
    assert page.count("<img ") == page.count("<source ") == 4
    drawn = {path.stem for path in (sweep / "plots").iterdir()}
    assert drawn == {"pareto", "reward_by_time", "reward_by_trajectories", "learning"}
    with (sweep / "tables" / "measures.csv").open() as file:
        measures = list(csv.DictReader(file))
    (reward,) = [
        row
        for row in measures
        if row["measure"] == "reward_end" and row["buffer.max_staleness"] == "1"
    ]
    # Steps 3 to 12 have 0.1 + 0.01 seed + 0.02 step, step from 2 to 11: 0.23 and 0.24.
    assert float(reward["mean"]) == pytest.approx(0.235)
    assert float(reward["half_width"]) == pytest.approx(12.7062047364 * 0.005, abs=1e-8)
    assert reward["n"] == "2"
    jobs = (sweep / "tables" / "jobs.md").read_text()
    assert "rank 0 ended \\| badly" in jobs


def test_a_sweep_without_any_complete_job_still_has_its_page(tmp_path: Path) -> None:
    (tmp_path / "multirun.yaml").write_text("{}")
    folder = tmp_path / "0"
    (folder / ".hydra").mkdir(parents=True)
    (folder / ".hydra" / "overrides.yaml").write_text('["seed=1"]')
    (folder / "summary.json").write_text('{"status": "failed", "error": "no device"}')
    assert report(tmp_path) == 0
    assert "no device" in (tmp_path / "report.html").read_text()


def test_what_is_neither_a_run_nor_a_sweep_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report(tmp_path) == 2
    assert "neither a run's folder" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "summary.json").write_text("{}")
    assert report(tmp_path, num_trajectories=5) == 2
    assert "--trajectories is for a multirun's folder" in capsys.readouterr().err
