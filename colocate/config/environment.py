"""What answers the model."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from colocate.config.types import ImportPath, NonNegativeFloat, PositiveFloat, PositiveInt, Section


class LatencyConfig(Section):
    """How long each environment step takes on top of its own work."""

    kind: Literal["off", "lognormal", "trace"] = Field(
        "off", description="No latency, drawn from a log-normal, or read from a file."
    )
    median_s: PositiveFloat = Field(0.05, description="`lognormal`: half of the steps take less.")
    sigma: NonNegativeFloat = Field(
        1.0, description="`lognormal`: deviation of the logarithm; the tail's weight."
    )
    cap_s: PositiveFloat = Field(60.0, description="No step is made to wait longer.")
    trace: str | None = Field(None, description="`trace`: a text file, one latency in s a line.")


class EnvironmentConfig(Section):
    factory: ImportPath = Field(description="`package.module:name` of the environment class.")
    options: dict[str, Any] = Field(default_factory=dict, description="Its keyword arguments.")
    runs_in: Literal["loop", "thread"] = Field(
        "loop",
        description="`loop`: its methods are coroutines, on the event loop; `thread`: plain "
        "functions, each call in a thread.",
    )
    step_timeout_s: PositiveFloat = Field(
        300.0,
        description="Deadline of one reset or step; one that misses it filters its trajectory.",
    )
    max_concurrent: PositiveInt | None = Field(
        None,
        description="Resets and steps that go on at once; the others wait, which counts for their "
        "deadline. null: no limit for `loop`, 32 for `thread`.",
    )
    observation_role: Literal["user", "tool"] = Field(
        "user",
        description="Whose message an observation is, for a model with a chat template, where the "
        "environment does not say.",
    )
    latency: LatencyConfig = Field(default_factory=LatencyConfig)
