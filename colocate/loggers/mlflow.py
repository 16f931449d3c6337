"""MLflow: a tracking server, or a database in the run's folder."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colocate.config import LoggerConfig

DATABASE = "mlflow.db"
_MAX_PARAMETER = 500
"""Characters; what is longer would be refused by old servers."""


class MlflowLogger:
    """A run of its own for each life of a run, in the experiment ``logger.project``.

    By the client, which keeps no state for the whole process. MLflow takes no ``@`` in a name:
    ``pass@1`` is ``pass_at_1`` there.
    """

    def __init__(self, config: LoggerConfig, run_dir: Path, parameters: Mapping[str, Any]) -> None:
        from mlflow import MlflowClient
        from mlflow.entities import Metric, Param

        self._metric = Metric
        uri = config.mlflow.tracking_uri or f"sqlite:///{run_dir / DATABASE}"
        self._client = MlflowClient(tracking_uri=uri)
        experiment = self._client.get_experiment_by_name(config.project)
        identifier = (
            self._client.create_experiment(config.project)
            if experiment is None
            else experiment.experiment_id
        )
        run = self._client.create_run(
            identifier,
            run_name=config.run_name or run_dir.name,
            tags={"colocate.run_dir": str(run_dir)},
        )
        self._run_id = run.info.run_id
        shown = [Param(name, str(value)[:_MAX_PARAMETER]) for name, value in parameters.items()]
        self._client.log_batch(self._run_id, params=shown)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        now_ms = time.time_ns() // 1_000_000
        metrics = [
            self._metric(name.replace("@", "_at_"), value, now_ms, step)
            for name, value in values.items()
        ]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self, *, succeeded: bool) -> None:
        self._client.set_terminated(self._run_id, "FINISHED" if succeeded else "FAILED")
