"""What is shown and kept of a run."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from colocate.config.types import NonNegativeInt, Section


class LoggerConfig(Section):
    display: Literal["auto", "live", "plain", "off"] = Field(
        "auto",
        description="`live` redraws a panel, `plain` prints a line a step; `auto` is "
        "`live` on a terminal, else `plain`.",
    )
    transcripts_per_step: NonNegativeInt = Field(
        4, description="Trajectories of a step that are kept as text."
    )
