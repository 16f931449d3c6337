"""Composes a command line into jobs with Hydra, before Hydra's own job starts.

Hydra stops at the first fault that it meets. Here each override is tried for itself once the whole
has failed, so that one message can name them all. This is the only module that uses what Hydra
keeps internal; the pinned version of it is part of the contract.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.config_search_path import SearchPathQuery
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.object_type import ObjectType
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.types import RunMode
from hydra.version import setbase
from omegaconf import DictConfig, ListConfig, OmegaConf, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from colocate.arithmetic import register_arithmetic
from colocate.cli.explain import explain, joint, unresolved
from colocate.problems import Problem, merge

register_arithmetic()

VERSION_BASE = "1.3"
CONFIG_NAME = "config"
_FAULTS = (HydraException, OmegaConfBaseException)
_BASIC = {
    "hydra.sweeper": "hydra._internal.core_plugins.basic_sweeper.BasicSweeper",
    "hydra.launcher": "hydra._internal.core_plugins.basic_launcher.BasicLauncher",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run that a command line asks for.

    Attributes:
        label: What sets it apart from the other jobs of a multirun; empty for a single run.
        tree: The composed configuration without Hydra's part; ``"???"`` where a value is missing.
        run_dir: Where Hydra will make its folder.
        subdir: That folder within the multirun's; empty for a single run.
    """

    label: str
    tree: dict[str, Any]
    run_dir: Path
    subdir: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """All jobs of a command line, and what Hydra would have found wrong with it.

    ``complete`` is False where a choice of a group failed, so that its values are missing.
    """

    multirun: bool
    jobs: tuple[Job, ...] = ()
    problems: tuple[Problem, ...] = ()
    complete: bool = True


def config_folder() -> Path:
    """The shipped configuration tree: in the wheel, or beside the package in a checkout.

    Raises:
        FileNotFoundError: an installation that lacks it.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "conf", package.parent / "conf"):
        if (folder / f"{CONFIG_NAME}.yaml").is_file():
            return folder
    raise FileNotFoundError(f"no conf/{CONFIG_NAME}.yaml in {package} or beside it; reinstall")


def plan_jobs(arguments: argparse.Namespace) -> Plan:
    """Composes every job of a command line, as Hydra's parser read it, and writes nothing."""
    problems = list(_refused_flags(arguments))
    if problems:
        return Plan(multirun=arguments.multirun, problems=tuple(problems))
    with _hydra(arguments.config_dir) as hydra:
        composer = _Composer(hydra, arguments.config_name or CONFIG_NAME)
        return composer.plan(list(arguments.overrides), multirun=arguments.multirun)


def _refused_flags(arguments: argparse.Namespace) -> Iterator[Problem]:
    if arguments.config_path is not None:
        yield Problem(
            field="--config-path",
            value=arguments.config_path,
            rule="would replace the shipped configuration tree",
            remedy="use --config-dir, which adds a folder to it",
        )
    if arguments.experimental_rerun is not None:
        yield Problem(
            field="--experimental-rerun",
            value=arguments.experimental_rerun,
            rule="would start a run without validating it",
            remedy="give the overrides in the run's .hydra/overrides.yaml once more",
        )
    if arguments.config_dir is not None and not Path(arguments.config_dir).is_dir():
        yield Problem(
            field="--config-dir",
            value=arguments.config_dir,
            rule="must be a folder that exists",
            remedy="name the folder that holds your own configuration groups",
        )


@contextmanager
def _hydra(config_dir: str | None) -> Iterator[Hydra]:
    setbase(VERSION_BASE)
    search_path = create_config_search_path(str(config_folder()))
    if config_dir is not None:
        search_path.prepend(
            provider="command-line",
            path=f"file://{Path(config_dir).resolve()}",
            anchor=SearchPathQuery(provider="schema"),
        )
    hydra_config = HydraConfig.instance()
    before = hydra_config.cfg
    try:
        yield Hydra.create_main_hydra2(task_name="colocate", config_search_path=search_path)
    finally:
        hydra_config.cfg = before
        GlobalHydra.instance().clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sifted:
    """What could be composed; ``refused`` are the overrides left out, one problem each."""

    config: DictConfig | None
    problems: tuple[Problem, ...] = ()
    refused: tuple[str, ...] = ()


class _Composer:
    """Composes with one Hydra instance, and explains what it cannot compose."""

    def __init__(self, hydra: Hydra, config_name: str) -> None:
        self._hydra = hydra
        self._loader = hydra.config_loader
        self._config_name = config_name

    def plan(self, overrides: list[str], *, multirun: bool) -> Plan:
        if not multirun and any(override.startswith("hydra.mode=") for override in overrides):
            mode = self._hydra.get_mode(config_name=self._config_name, overrides=overrides)
            multirun = mode == RunMode.MULTIRUN
        sifted = self._sift(overrides, RunMode.MULTIRUN if multirun else RunMode.RUN)
        problems = list(sifted.problems)
        if sifted.config is None:
            return Plan(multirun=multirun, problems=tuple(problems))
        problems += _refused_plugins(sifted.config)
        if multirun:
            return self._plan_sweep(sifted.config, problems)
        job = self._job(sifted.config, label="", problems=problems, directories=("hydra.run.dir",))
        return Plan(
            multirun=False,
            jobs=(job,) if job is not None else (),
            problems=tuple(problems),
            complete=not any(self._chooses(override) for override in sifted.refused),
        )

    def _plan_sweep(self, master: DictConfig, problems: list[Problem]) -> Plan:
        jobs: list[Job] = []
        try:
            batches = self._batches(master)
        except _FAULTS as error:
            return Plan(multirun=True, problems=(*problems, joint(error)))
        of_jobs: list[Problem] = []
        constant = set.intersection(*map(set, batches))
        for number, overrides in enumerate(batches):
            varied = [override for override in overrides if override not in constant]
            label = f"job {number} ({' '.join(varied)})" if varied else f"job {number}"
            sifted = self._sift([*_raw(master.hydra.overrides.hydra), *overrides], RunMode.RUN)
            found = list(sifted.problems)
            if sifted.config is not None and not found:
                OmegaConf.copy_cache(from_config=master, to_config=sifted.config)
                with open_dict(sifted.config):
                    sifted.config.hydra.job.id = str(number)
                    sifted.config.hydra.job.num = number
                directories = ("hydra.sweep.dir", "hydra.sweep.subdir")
                job = self._job(sifted.config, label=label, problems=found, directories=directories)
                if job is not None:
                    jobs.append(job)
            of_jobs += [replace(problem, jobs=(label,)) for problem in found]
        problems += merge(of_jobs, num_jobs=len(batches))
        problems += _shared_folders(jobs)
        return Plan(multirun=True, jobs=tuple(jobs), problems=tuple(problems))

    def _batches(self, master: DictConfig) -> list[list[str]]:
        """The overrides of each job, split as Hydra's own sweeper will split them."""
        params = master.hydra.sweeper.get("params") or {}
        arguments = [f"{key}={value}" for key, value in params.items()]
        arguments += _raw(master.hydra.overrides.task)
        parsed = OverridesParser.create(config_loader=self._loader).parse_overrides(arguments)
        return [
            list(overrides)
            for batch in BasicSweeper.split_arguments(parsed, max_batch_size=None)
            for overrides in batch
        ]

    def _compose(self, overrides: list[str], run_mode: RunMode) -> DictConfig:
        config: DictConfig = self._hydra.compose_config(
            config_name=self._config_name, overrides=overrides, run_mode=run_mode
        )
        return config

    def _sift(self, overrides: list[str], run_mode: RunMode) -> _Sifted:
        """Composes; where that fails, finds out which overrides are at fault, and does without."""
        try:
            return _Sifted(config=self._compose(overrides, run_mode))
        except _FAULTS:
            pass
        # Choices of groups come first: they decide which keys there are.
        good: list[str] = []
        refused: dict[str, Problem] = {}
        config = None
        for override in sorted(overrides, key=lambda text: not self._chooses(text)):
            try:
                config = self._compose([*good, override], run_mode)
            except _FAULTS as error:
                names_group = self._chooses(override)
                refused[override] = explain(override, error, names_group=names_group)
            else:
                good.append(override)
        problems = list(refused.values())
        if config is None:
            try:
                config = self._compose([], run_mode)
            except _FAULTS as error:
                problems.append(joint(error))
        return _Sifted(config=config, problems=tuple(problems), refused=tuple(refused))

    def _chooses(self, override: str) -> bool:
        """Whether it chooses a file of a group, and does not set a value."""
        key = override.partition("=")[0].strip().lstrip("+~").partition("@")[0]
        return bool(self._loader.get_group_options(key.replace(".", "/"), ObjectType.CONFIG))

    def _job(
        self, config: DictConfig, *, label: str, problems: list[Problem], directories: Sequence[str]
    ) -> Job | None:
        """Resolves a composed configuration; appends to ``problems`` what cannot be resolved."""
        HydraConfig.instance().set_config(config)
        run_dir, subdir = Path(), ""
        found: list[Problem] = []
        for level, key in enumerate(directories):
            try:
                part = str(OmegaConf.select(config, key, throw_on_missing=True))
                run_dir /= part
                subdir = part if level else ""
            except OmegaConfBaseException as error:
                found.append(unresolved(key, error))
        with read_write(config.hydra.runtime), open_dict(config.hydra.runtime):
            config.hydra.runtime.output_dir = str(run_dir.absolute())
        tree = OmegaConf.masked_copy(config, [str(key) for key in config if key != "hydra"])
        try:
            plain = OmegaConf.to_container(tree, resolve=True, throw_on_missing=False)
        except OmegaConfBaseException as error:
            found.append(unresolved(str(error.full_key or "configuration"), error))
        problems += found
        if found:
            return None
        assert isinstance(plain, dict)
        tree_of_job = {str(key): value for key, value in plain.items()}
        return Job(label=label, tree=tree_of_job, run_dir=run_dir, subdir=subdir)


def _raw(overrides: ListConfig) -> list[str]:
    """As they were given: what an override interpolates is each job's own."""
    given = OmegaConf.to_container(overrides, resolve=False)
    assert isinstance(given, list)
    return [str(override) for override in given]


def _refused_plugins(master: DictConfig) -> Iterator[Problem]:
    for key, expected in _BASIC.items():
        target = OmegaConf.select(master, f"{key}._target_")
        if target != expected:
            yield Problem(
                field=key,
                value=target,
                rule="must be Hydra's basic one: each job gets a child process of its own, one "
                "after the other",
                remedy=f"leave {key.replace('.', '/')} out",
            )
    if master.hydra.output_subdir != ".hydra":
        yield Problem(
            field="hydra.output_subdir",
            value=master.hydra.output_subdir,
            rule="must be `.hydra`, where other tools look for a run's configuration",
            remedy="leave hydra.output_subdir out",
        )


def _shared_folders(jobs: Sequence[Job]) -> Iterator[Problem]:
    owners: dict[Path, list[str]] = {}
    for job in jobs:
        owners.setdefault(job.run_dir, []).append(job.label)
    for run_dir, labels in owners.items():
        if len(labels) > 1:
            yield Problem(
                field="hydra.sweep.subdir",
                value=str(run_dir),
                rule="must differ between jobs, or one overwrites the other",
                remedy="use hydra.sweep.subdir='${hydra.job.num}'",
                jobs=tuple(labels),
            )
