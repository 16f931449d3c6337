"""``colocate simulate``: the configuration tree of a training run, carried out without engines."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import yaml

from colocate.cli.train import Program, parse, train
from colocate.config import RunConfig
from colocate.preflight import SIMULATION_RULES
from colocate.problems import ConfigurationError, Problem


def _run(config: RunConfig, run_dir: Path) -> int:
    from colocate.simulate import run

    return run(config, run_dir)


SIMULATE = Program(
    name="simulate",
    config_name="simulate",
    run=_run,
    job="simulate-job",
    rules=SIMULATION_RULES,
)

_FROM_RUN = "sim.from_run"
_GOES_WITH_IT = ("sim.from_run", "sim.trace_fraction", "sim.audit")


def simulate(arguments: Sequence[str], *, grace_s: float = 15.0) -> int:
    """Simulates as the arguments say; returns the exit status.

    Raises:
        ConfigurationError: with all problems of all jobs, before anything is written.
    """
    inherited = inherited_overrides(parse(arguments, SIMULATE.name).overrides)
    return train([*inherited, *arguments], program=SIMULATE, grace_s=grace_s)


def inherited_overrides(overrides: Sequence[str]) -> list[str]:
    """What the run of ``sim.from_run`` was started with, where nothing else is said now.

    Raises:
        ConfigurationError: parameters are given that the fit to the run would replace.
    """
    folder = next(
        (text.partition("=")[2] for text in overrides if _key(text) == _FROM_RUN), ""
    ).strip("'\"")
    if folder in ("", "null"):
        return []
    replaced = [
        text
        for text in overrides
        if _key(text).startswith("sim.") and _key(text) not in _GOES_WITH_IT
    ]
    if replaced:
        raise ConfigurationError(
            [
                Problem(
                    field=_key(text),
                    value=text.partition("=")[2],
                    rule=f"has no effect beside {_FROM_RUN}: it is fitted to the run",
                    remedy=f"leave it out, or leave {_FROM_RUN} out",
                )
                for text in replaced
            ]
        )
    path = Path(folder) / ".hydra" / "overrides.yaml"
    if not path.is_file():
        return []  # preflight says what is wrong with the folder
    given = {_key(text) for text in overrides}
    earlier = [str(text) for text in yaml.safe_load(path.read_text()) or []]
    return [text for text in earlier if _key(text) not in given]


def _key(override: str) -> str:
    return override.partition("=")[0].strip().lstrip("+~")
