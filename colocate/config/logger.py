"""What is shown and kept of a run, and which trackers it reports to."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from colocate.config.types import NonNegativeInt, Section

Tracker = Literal["tensorboard", "wandb", "trackio", "mlflow"]


class WandbConfig(Section):
    """Weights & Biases."""

    mode: Literal["online", "offline"] = Field(
        "online",
        description="`offline` writes into the run's folder; `wandb sync` sends that later.",
    )
    entity: str | None = Field(None, description="User or team; null: wandb's own default.")


class TrackioConfig(Section):
    """trackio."""

    space_id: str | None = Field(
        None, description="Space on the Hugging Face hub; null: this machine's `TRACKIO_DIR`."
    )


class MlflowConfig(Section):
    """MLflow."""

    tracking_uri: str | None = Field(
        None, description="Server or database; null: `mlflow.db` in the run's folder."
    )


class LoggerConfig(Section):
    display: Literal["auto", "live", "plain", "off"] = Field(
        "auto",
        description="`live` redraws a panel, `plain` prints a line a step; `auto` is "
        "`live` on a terminal, else `plain`.",
    )
    transcripts_per_step: NonNegativeInt = Field(
        4, description="Trajectories of a step that are kept as text."
    )
    to: tuple[Tracker, ...] = Field(
        (),
        strict=False,
        description="Trackers that get the metrics too, as `[tensorboard, wandb]`; "
        "`metrics.jsonl` and `eval.jsonl` are always written. See logging.md.",
    )
    project: str = Field("colocate", min_length=1, description="Under which trackers file the run.")
    run_name: str | None = Field(
        None, min_length=1, description="In trackers; null: the run folder's."
    )
    wandb: WandbConfig = Field(default_factory=WandbConfig)
    trackio: TrackioConfig = Field(default_factory=TrackioConfig)
    mlflow: MlflowConfig = Field(default_factory=MlflowConfig)
