"""What a multirun is planned to be, before any job of it begins."""

from __future__ import annotations

from colocate.cli.compose import plan_jobs
from colocate.cli.train import parse

SWEEP = ("-m", "+experiment=quickstart", "scheduler=interval,interval_2", "seed=3,4")


def test_what_an_override_interpolates_is_each_jobs_own() -> None:
    folder = "hydra.sweep.subdir=k${scheduler.swap_interval}_seed${seed}"
    plan = plan_jobs(parse([*SWEEP, folder, "buffer.max_staleness=${scheduler.swap_interval}"]))
    assert plan.problems == ()
    names = [job.run_dir.name for job in plan.jobs]
    assert names == ["k1_seed3", "k1_seed4", "k2_seed3", "k2_seed4"]
    assert [job.tree["buffer"]["max_staleness"] for job in plan.jobs] == [1, 1, 2, 2]
