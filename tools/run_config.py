"""The configuration that a run in a folder was started with."""

from __future__ import annotations

from pathlib import Path

from omegaconf import OmegaConf

from colocate.arithmetic import register_arithmetic
from colocate.config import RunConfig
from colocate.schema import examine


class RunConfigError(Exception):
    """A folder has no configuration that can be used."""


def read_run_config(run_dir: Path) -> RunConfig:
    """As the run was started; nothing of it must be there any more, so no rule is asked.

    Raises:
        RunConfigError: there is none, or it is of another version.
        OSError: it cannot be read.
    """
    path = run_dir / ".hydra" / "config.yaml"
    if not path.is_file():
        raise RunConfigError(f"{run_dir} is no run's folder: it lacks .hydra/config.yaml")
    register_arithmetic()
    tree = OmegaConf.to_container(OmegaConf.load(path), resolve=True)
    assert isinstance(tree, dict)
    examination = examine({str(key): value for key, value in tree.items()})
    if examination.config is None:
        problems = "; ".join(f"{p.field}: {p.rule}" for p in examination.problems)
        raise RunConfigError(f"{path} is of another version: {problems}")
    return examination.config
