"""``colocate train`` and ``colocate simulate``: one run, or a multirun of several.

    arguments -> compose every job -> validate every job --- problems? -> exit status 2
                                             |
                                    hand over to Hydra, which makes the run's folder
                                             |
                       a single run: here    |    a multirun: a child process for each job that
                                             |    an earlier try at it has not done

Nothing is written before everything is known to be right.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import hydra
from hydra._internal.utils import get_args_parser
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig, ListConfig, OmegaConf

from colocate.cli.compose import CONFIG_NAME, VERSION_BASE, Plan, config_folder, plan_jobs
from colocate.cli.earlier_jobs import EarlierJobs, find_earlier_jobs, set_aside
from colocate.cli.multirun import Multirun
from colocate.config import RunConfig
from colocate.preflight import RULES, Rule, find_problems, validate
from colocate.problems import ConfigurationError, Problem, merge
from colocate.report.sweep_manifest import ManifestJob, SweepManifest

Run = Callable[[RunConfig, Path], int]
"""Carries out one run in its folder; returns the exit status."""

JobCommand = Callable[[Path], Sequence[str]]
"""The command line that carries out, in a child process, the job prepared in a folder."""


def _app_run(config: RunConfig, run_dir: Path) -> int:
    from colocate.app import run

    return run(config, run_dir)


def _command_of_job(name: str) -> JobCommand:
    return lambda run_dir: [sys.executable, "-m", "colocate.cli.main", name, str(run_dir)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """A command that composes a configuration and carries out runs of it.

    Attributes:
        name: As people type it.
        config_name: The root of its configuration tree.
        run: What carries out a single run.
        job: The hidden command that carries out a prepared job of a multirun.
        rules: What relates its fields to each other.
    """

    name: str
    config_name: str
    run: Run
    job: str
    rules: Sequence[Rule]


TRAIN = Program(name="train", config_name=CONFIG_NAME, run=_app_run, job="run-job", rules=RULES)


def train(
    arguments: Sequence[str],
    *,
    program: Program = TRAIN,
    run: Run | None = None,
    job_command: JobCommand | None = None,
    grace_s: float = 15.0,
) -> int:
    """Runs as the arguments say; returns the exit status.

    Args:
        arguments: Hydra's flags and overrides.
        program: What is composed, and what is run.
        run: What carries out a single run; None: the program's.
        job_command: What carries out a job of a multirun; None: the program's.
        grace_s: How long what a job leaves behind may take to end by itself. A run's own reaper
            may need ten seconds to end what a dead driver left.

    Raises:
        ConfigurationError: with all problems of all jobs, before anything is written.
    """
    parsed = parse(arguments, program.name)
    parsed.config_name = parsed.config_name or program.config_name
    plan = plan_jobs(parsed)
    if _asks_only(parsed):
        if plan.problems:
            raise ConfigurationError(plan.problems)
        _hand_over(program, arguments, _refuse_to_run)
        return 0
    check_plan(plan, program.rules)
    arguments = _flags_first(parsed, multirun=plan.multirun)
    if plan.multirun:
        earlier = find_earlier_jobs(plan.jobs)
        if earlier.problems:
            raise ConfigurationError(earlier.problems)
        multirun = Multirun(num_jobs=len(plan.jobs), grace_s=grace_s)
        job_command = job_command or _command_of_job(program.job)
        return _train_all(program, arguments, plan, earlier, multirun, job_command)
    return _train_one(program, arguments, run or program.run)


def check_plan(plan: Plan, rules: Sequence[Rule] = RULES) -> None:
    """Validates every job.

    Raises:
        ConfigurationError: with the problems of all jobs.
    """
    of_jobs: list[Problem] = []
    for job in plan.jobs:
        _, found = find_problems(job.tree, run_dir=job.run_dir, complete=plan.complete, rules=rules)
        jobs = (job.label,) if plan.multirun else ()
        of_jobs += [replace(problem, jobs=jobs) for problem in found]
    if plan.multirun:
        of_jobs = merge(of_jobs, num_jobs=len(plan.jobs))
    if plan.problems or of_jobs:
        raise ConfigurationError([*plan.problems, *of_jobs])


def run_job(run_dir: Path, *, program: Program = TRAIN, run: Run | None = None) -> int:
    """Carries out the job whose composed configuration lies in ``run_dir/.hydra/config.yaml``."""
    tree = OmegaConf.load(run_dir / ".hydra" / "config.yaml")
    return (run or program.run)(_typed(tree, program), run_dir)


def parse(arguments: Sequence[str], name: str = "train") -> argparse.Namespace:
    """Reads Hydra's flags and overrides, in any order.

    Raises:
        SystemExit: with 2 for a flag that there is not, with 0 after ``--version``.
    """
    parser: argparse.ArgumentParser = get_args_parser()
    parser.prog = f"colocate {name}"
    parser.usage = "%(prog)s [-m] [+experiment=NAME] [KEY=VALUE ...]; --hydra-help lists all flags"
    # Hydra's own parsing refuses a flag between two overrides.
    return parser.parse_intermixed_args(list(arguments))


def _flags_first(parsed: argparse.Namespace, *, multirun: bool) -> list[str]:
    """The same command line in the order that Hydra's own parsing takes."""
    flags = ["--multirun"] if multirun else []
    for name in ("config_name", "config_dir"):
        if (value := getattr(parsed, name)) is not None:
            flags += [f"--{name.replace('_', '-')}", value]
    return [*flags, *parsed.overrides]


def _asks_only(parsed: argparse.Namespace) -> bool:
    """Whether the arguments ask Hydra to show something, and no run."""
    return bool(
        parsed.help or parsed.hydra_help or parsed.cfg or parsed.info or parsed.shell_completion
    )


def _train_one(program: Program, arguments: Sequence[str], run: Run) -> int:
    statuses: list[int] = []

    def task(tree: DictConfig) -> None:
        folder = Path(HydraConfig.get().runtime.output_dir)
        statuses.append(run(_typed(tree, program), folder))

    _hand_over(program, arguments, task)
    return statuses[0]


def _train_all(
    program: Program,
    arguments: Sequence[str],
    plan: Plan,
    earlier: EarlierJobs,
    multirun: Multirun,
    job_command: JobCommand,
) -> int:
    for number in earlier.unfinished:
        # A resumed run tells of its last life only, so a sweep begins a job anew unless asked.
        if plan.jobs[number].tree.get("resume", "never") == "never":
            moved = set_aside(plan.jobs[number].run_dir)
            print(f"{plan.jobs[number].label} begins anew; before: {moved}", file=sys.stderr)
    numbers = iter(range(len(plan.jobs)))
    manifest: SweepManifest | None = None
    with multirun:

        def task(tree: DictConfig) -> None:
            nonlocal manifest
            hydra_config, number = HydraConfig.get(), next(numbers)
            run_dir, label = Path(hydra_config.runtime.output_dir), plan.jobs[number].label
            # Hydra fixes the folder, which may carry the time, when it begins.
            manifest = manifest or _manifest(Path(hydra_config.sweep.dir), plan, earlier)
            if number in earlier.done:
                multirun.skip(label, run_dir)
                return
            manifest.mark(number, "running")
            try:
                reason = multirun.run(label, run_dir, job_command(run_dir))
            except SystemExit:
                manifest.mark(number, "failed", "the multirun was stopped")
                raise
            manifest.mark(number, "failed" if reason else "done", reason)

        _hand_over(program, arguments, task)
    status = multirun.close()
    if manifest is not None:
        print(f"To compare them: colocate report {manifest.folder}", file=sys.stderr)
    return status


def _manifest(folder: Path, plan: Plan, earlier: EarlierJobs) -> SweepManifest:
    jobs = [
        ManifestJob(
            folder=job.subdir,
            label=job.label,
            state="done" if number in earlier.done else "waiting",
        )
        for number, job in enumerate(plan.jobs)
    ]
    manifest = SweepManifest(folder, jobs)
    manifest.write()
    return manifest


def _hand_over(
    program: Program, arguments: Sequence[str], task: Callable[[DictConfig], None]
) -> None:
    """Lets Hydra read the same arguments, make the folders, and call ``task`` for each job."""
    decorate = hydra.main(
        version_base=VERSION_BASE, config_path=str(config_folder()), config_name=program.config_name
    )
    before = sys.argv
    sys.argv = [f"colocate {program.name}", *arguments]
    try:
        decorate(task)()
    finally:
        sys.argv = before


def _refuse_to_run(tree: DictConfig) -> None:
    raise AssertionError("Hydra started a run where it was asked to show something")


def _typed(tree: DictConfig | ListConfig, program: Program) -> RunConfig:
    plain = OmegaConf.to_container(tree, resolve=True)
    assert isinstance(plain, dict)
    return validate({str(key): value for key, value in plain.items()}, rules=program.rules)
