"""What the scheduler relies on of a memory reading."""

from __future__ import annotations

from colocate.core.types import MemorySample


class MemoryContract:
    """Subclasses provide the fixture ``sample``: a reading with an engine and a trainer alive."""

    def test_a_reading_is_of_one_device_and_of_known_tenants(self, sample: MemorySample) -> None:
        assert sample.total > 0
        assert sample.used > 0
        assert set(sample.tenants) <= {"engine", "trainer"}
        assert all(held > 0 for held in sample.tenants.values())
        assert sum(sample.tenants.values()) <= sample.used
        assert sample.free == max(0, sample.total - sample.used)
