"""``report.html`` of a multirun: its settings against each other, with every job accounted for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from colocate.report.page import write_page
from colocate.report.statistics import CONFIDENCE, Estimate
from colocate.report.sweep_jobs import SEED, SweepJob, read_sweep, swept_keys
from colocate.report.sweep_measures import (
    LAST_STEPS,
    MEASURES,
    Group,
    Point,
    common_budget,
    group_jobs,
    label_of,
    learned,
    summarise,
)
from colocate.report.sweep_plots import write_sweep_plots
from colocate.report.tables import Column, Table
from colocate.report.transcripts import printable
from colocate.report.words import counted, duration

PAGE = "report.html"


def write_sweep_report(
    folder: Path, *, num_trajectories: int | None = None, target: Path | None = None
) -> Path:
    """Writes ``report.html``, ``plots/`` and ``tables/`` (CSV and Markdown) into the folder.

    Args:
        folder: The sweep's (``hydra.sweep.dir``).
        num_trajectories: After how many trained trajectories the learning study compares; None:
            as many as every complete job reached.
        target: Where they are written; None: into the sweep's folder.

    Returns:
        The page's path.
    """
    jobs = read_sweep(folder)
    target = target or folder
    groups = group_jobs(jobs)
    budget = num_trajectories or common_budget(jobs)
    found = learned(groups, budget) if budget else {}
    known = {point: each for point, each in found.items() if each is not None}
    tables = {
        "settings": settings_table(groups),
        "measures": measure_table(groups),
        "jobs": job_table(jobs),
    }
    if budget:
        tables["learning"] = learning_table(groups, known)
    _write_tables(target / "tables", tables)
    plots = write_sweep_plots(target, groups, budget, known)
    num_complete = sum(job.is_complete for job in jobs)
    context = {
        "title": f"colocate sweep {folder.absolute().name}",
        "folder": str(folder.absolute()),
        "num_jobs": counted(len(jobs), "job"),
        "num_complete": num_complete,
        "is_whole": num_complete == len(jobs),
        "any_failed": any(job.status == "failed" for job in jobs),
        "swept": swept_keys(jobs),
        "seeds": sorted({job.overrides[SEED] for job in jobs if SEED in job.overrides}),
        "tables": {name: tables.get(name) for name in ("settings", "learning", "jobs")},
        "plots": {
            name: plots.get(name)
            for name in ("pareto", "reward_by_time", "reward_by_trajectories", "learning")
        },
        "measures": MEASURES,
        "budget": f"{budget:,}" if budget else "",
        "chosen": num_trajectories is not None,
        "last_steps": LAST_STEPS,
        "confidence": f"{100 * CONFIDENCE:.0f}%",
    }
    return write_page(target / PAGE, "sweep.html.j2", context)


def settings_table(groups: Sequence[Group]) -> Table:
    """A row for each setting: every measure with its interval over seeds."""
    keys = [key for key, _ in groups[0].point] if groups else []
    columns = [
        *(Column(key) for key in keys),
        Column("n", is_number=True),
        *(Column(measure.title, is_number=True) for measure in MEASURES),
    ]
    rows = []
    for group in groups:
        summary = summarise(group)
        rows.append(
            [
                *(value for _, value in group.point),
                str(len(group.jobs)),
                *(_figure(summary[m.name], m.digits) for m in MEASURES),
            ]
        )
    return Table(columns, rows)


def measure_table(groups: Sequence[Group]) -> Table:
    """A row for each setting and measure, unrounded: for other programs."""
    keys = [key for key, _ in groups[0].point] if groups else []
    names = ("mean", "half_width", "n")
    columns = [*map(Column, [*keys, "measure"]), *(Column(name, is_number=True) for name in names)]
    rows = []
    for group in groups:
        for name, each in summarise(group).items():
            if each is not None:
                width = "" if each.half_width is None else repr(each.half_width)
                values = [value for _, value in group.point]
                rows.append([*values, name, repr(each.mean), width, str(each.n)])
    return Table(columns, rows)


def learning_table(groups: Sequence[Group], known: dict[Point, Estimate]) -> Table:
    """A row for each setting: the reward after the study's number of trained trajectories."""
    columns = [
        Column("setting"),
        Column("reward", is_number=True),
        Column("interval, ±", is_number=True),
        Column("n", is_number=True),
    ]
    rows = []
    for group in groups:
        each = known.get(group.point)
        if each is None:
            rows.append([label_of(group.point), "trained fewer", "-", "0"])
        else:
            width = "-" if each.half_width is None else f"{each.half_width:.3f}"
            rows.append([label_of(group.point), f"{each.mean:.3f}", width, str(each.n)])
    return Table(columns, rows)


def job_table(jobs: Sequence[SweepJob]) -> Table:
    """Every job, whatever became of it."""
    keys = [*swept_keys(jobs)]
    if any(SEED in job.overrides for job in jobs):
        keys.append(SEED)
    columns = [
        Column("job"),
        *(Column(key) for key in keys),
        Column("status"),
        Column("steps", is_number=True),
        Column("wall", is_number=True),
        Column("why it did not complete"),
    ]
    rows = []
    for job in jobs:
        summary = job.summary
        why = job.reason or ("" if job.overrides else job.label)
        rows.append(
            [
                job.name,
                *(job.overrides.get(key, "-") for key in keys),
                job.status,
                str(summary["steps"]) if summary else str(len(job.metrics)),
                duration(summary["wall_s"]) if summary else "-",
                "" if job.is_complete else printable(why),
            ]
        )
    return Table(columns, rows)


def _figure(each: Estimate | None, digits: int) -> str:
    if each is None:
        return "-"
    if each.half_width is None:
        return f"{each.mean:.{digits}f}"
    return f"{each.mean:.{digits}f} ± {each.half_width:.{max(1, digits)}f}"


def _write_tables(folder: Path, tables: dict[str, Table]) -> None:
    folder.mkdir(exist_ok=True)
    for name, table in tables.items():
        (folder / f"{name}.csv").write_text(table.to_csv(), encoding="utf-8")
        (folder / f"{name}.md").write_text(table.to_markdown(), encoding="utf-8")
