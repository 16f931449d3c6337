"""From the configuration to the trackers of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from colocate.config import LoggerConfig, RunConfig
from colocate.loggers.group import LoggerGroup, MakeLogger
from colocate.ports import RunLogger


def make_loggers(config: RunConfig, run_dir: Path) -> LoggerGroup:
    """Opens each of ``logger.to``, in its own thread and its own time."""
    parameters = dict(flat(config.model_dump(mode="json")))
    makers: dict[str, MakeLogger] = {
        name: partial(_make, name, config.logger, run_dir, parameters) for name in config.logger.to
    }
    return LoggerGroup(makers)


def _make(
    name: str, config: LoggerConfig, run_dir: Path, parameters: Mapping[str, Any]
) -> RunLogger:
    match name:
        case "tensorboard":
            from colocate.loggers.tensorboard import TensorBoardLogger

            return TensorBoardLogger(run_dir)
        case "wandb":
            from colocate.loggers.wandb import WandbLogger

            return WandbLogger(config, run_dir, parameters)
        case "mlflow":
            from colocate.loggers.mlflow import MlflowLogger

            return MlflowLogger(config, run_dir, parameters)
        case _:
            from colocate.loggers.trackio import TrackioLogger

            return TrackioLogger(config, run_dir, parameters)


def flat(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """The leaves of a tree by dotted path."""
    for key, value in tree.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
