"""What engine and trainer may hold, and how it is measured."""

from __future__ import annotations

from pydantic import Field

from colocate.config.types import NonNegativeInt, PositiveFloat, PositiveInt, Section


class MemoryConfig(Section):
    budget_bytes: PositiveInt | None = Field(
        None, description="What engine and trainer may hold together; null: the device."
    )
    host_budget_bytes: PositiveInt | None = Field(
        None,
        description="What all processes of the run may hold of the machine's RAM; null: all of "
        "it, or the limit of the container.",
    )
    margin_bytes: NonNegativeInt = Field(64 * 2**20, description="Kept free of any plan.")
    remedy_after_s: PositiveFloat = Field(
        5.0,
        description="How long a phase waits for memory to come free before it tries the next "
        "remedy: collecting, a deeper sleep, offloading more.",
    )
    sample_interval_s: PositiveFloat = Field(
        0.5, description="Between two readings of the device's memory."
    )
    telemetry_interval_s: PositiveFloat = Field(
        5.0,
        description="Between two readings of what is only shown: GPU load, temperature and power, "
        "proportional set sizes.",
    )
