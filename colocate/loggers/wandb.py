"""Weights & Biases, online or offline."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colocate.config import LoggerConfig

STEP = "step"


class WandbLogger:
    """A run of its own for each life of a run, grouped by the run's folder.

    Steps are a value beside the others and not the package's own, which must never fall: an
    evaluation comes after the step that it is of.
    """

    def __init__(self, config: LoggerConfig, run_dir: Path, parameters: Mapping[str, Any]) -> None:
        import wandb

        self._run = wandb.init(
            project=config.project,
            entity=config.wandb.entity,
            name=config.run_name or run_dir.name,
            group=run_dir.name,
            dir=str(run_dir),
            config=dict(parameters),
            mode=config.wandb.mode,
            settings=wandb.Settings(silent=True, console="off"),
        )
        self._run.define_metric(STEP, hidden=True)
        self._run.define_metric("*", step_metric=STEP)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({STEP: step, **values})

    def close(self, *, succeeded: bool) -> None:
        self._run.finish(exit_code=0 if succeeded else 1)
