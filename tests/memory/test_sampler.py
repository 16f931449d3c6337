"""Background samples: they come, they stop, and an error ends them once."""

from __future__ import annotations

import queue
import threading

from colocate.adapters.memory.errors import MemoryProbeError
from colocate.adapters.memory.sampler import MemorySampler
from colocate.core.types import MemorySample


class CountingProbe:
    """Counts its samples; fails at one of them."""

    provider = "counting"

    def __init__(self, fails_at: int | None = None) -> None:
        self.num_samples = 0
        self._fails_at = fails_at

    def sample(self) -> MemorySample:
        self.num_samples += 1
        if self.num_samples == self._fails_at:
            raise MemoryProbeError("the driver is gone")
        return MemorySample(used=self.num_samples, total=100)

    def release(self) -> None:
        return


def test_samples_come_in_order_with_their_times_until_closed() -> None:
    seen: queue.Queue[tuple[float, MemorySample]] = queue.Queue()
    probe = CountingProbe()
    with MemorySampler(probe, 0.001, lambda t, s: seen.put((t, s)), errors_are_bugs):
        readings = [seen.get(timeout=30) for _ in range(5)]
    assert [sample.used for _, sample in readings] == [1, 2, 3, 4, 5]
    times = [time_s for time_s, _ in readings]
    assert times == sorted(times)
    taken = probe.num_samples
    assert not [t for t in threading.enumerate() if t.name == "memory-sampler"]
    assert probe.num_samples == taken


def test_an_error_is_handed_over_once_and_ends_the_sampling() -> None:
    errors: queue.Queue[Exception] = queue.Queue()
    samples: list[MemorySample] = []
    probe = CountingProbe(fails_at=3)
    sampler = MemorySampler(probe, 0.001, lambda _, s: samples.append(s), errors.put)
    sampler.start()
    assert "the driver is gone" in str(errors.get(timeout=30))
    sampler.close()
    sampler.close()
    assert len(samples) == 2
    assert probe.num_samples == 3
    assert errors.empty()


def test_closing_does_not_wait_for_the_interval() -> None:
    first = threading.Event()
    sampler = MemorySampler(CountingProbe(), 3600.0, lambda *_: first.set(), errors_are_bugs)
    sampler.start()
    assert first.wait(timeout=30)
    sampler.close()


def errors_are_bugs(error: Exception) -> None:
    raise AssertionError(f"no error was expected: {error}")
