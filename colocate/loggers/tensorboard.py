"""TensorBoard: event files in the run's folder, for ``tensorboard --logdir RUN_DIR``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

FOLDER = "tensorboard"


class TensorBoardLogger:
    """Writes with the package's own writer, which takes neither TensorFlow nor torch."""

    def __init__(self, run_dir: Path) -> None:
        from tensorboard.summary import Writer

        self._writer = Writer(str(run_dir / FOLDER))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self, *, succeeded: bool) -> None:
        self._writer.close()
