"""Deadlines, and what is started anew."""

from __future__ import annotations

from pydantic import Field

from colocate.config.types import NonNegativeInt, PositiveFloat, Section


class SupervisionConfig(Section):
    start_timeout_s: PositiveFloat = Field(600.0, description="For engine and trainer to start.")
    phase_timeout_s: PositiveFloat = Field(300.0, description="Deadline of each phase of a swap.")
    training_timeout_s: PositiveFloat = Field(
        3600.0, description="Deadline of each training step, and of writing a checkpoint."
    )
    idle_timeout_s: PositiveFloat = Field(
        600.0,
        description="A rollout in which nothing happens for so long ends the run, or, where an "
        "engine owes answers, has that started anew.",
    )
    grace_s: PositiveFloat = Field(20.0, description="For an orderly end after a signal.")
    max_restarts: NonNegativeInt = Field(
        3,
        description="How often an engine or a trainer that died, or did not answer by its "
        "deadline, is started anew within `restart_window_s` before the run ends; 0: never.",
    )
    restart_window_s: PositiveFloat = Field(
        21600.0, description="The window in which restarts are counted together."
    )
