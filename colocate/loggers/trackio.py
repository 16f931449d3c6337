"""trackio: a database on this machine, or a Space on the Hugging Face hub."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from colocate.config import LoggerConfig


class TrackioLogger:
    """A run of its own for each life of a run; trackio names all but the first."""

    def __init__(self, config: LoggerConfig, run_dir: Path, parameters: Mapping[str, Any]) -> None:
        import trackio

        self._run = trackio.init(
            project=config.project,
            name=config.run_name or run_dir.name,
            group=run_dir.name,
            space_id=config.trackio.space_id,
            config=dict(parameters),
            resume="never",
            embed=False,
            auto_log_gpu=False,
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self, *, succeeded: bool) -> None:
        self._run.finish()
