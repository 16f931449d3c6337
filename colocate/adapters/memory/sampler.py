"""Background samples for the trace. Decisions never read them: those sample for themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from colocate.core.types import MemorySample
from colocate.ports import MemoryProbe


class MemorySampler:
    """Samples a probe at an interval, in a thread of its own, from ``start`` to ``close``.

    Args:
        probe: Read from the thread; must allow that beside other callers.
        interval_s: From one reading's start to the next one's.
        on_sample: Called in the thread with the clock's time of the reading and the reading.
        on_error: Called in the thread, once, with the exception that ended the sampling.
        clock: The run's clock, in seconds.
    """

    def __init__(
        self,
        probe: MemoryProbe,
        interval_s: float,
        on_sample: Callable[[float, MemorySample], None],
        on_error: Callable[[Exception], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._probe = probe
        self._interval_s = interval_s
        self._on_sample = on_sample
        self._on_error = on_error
        self._clock = clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory-sampler", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends the thread; no callback runs after it returns. Safe to call twice."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join()

    def __enter__(self) -> MemorySampler:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        due = self._clock()
        while not self._stop.is_set():
            try:
                time_s = self._clock()
                self._on_sample(time_s, self._probe.sample())
            except Exception as error:
                self._on_error(error)
                return
            # A reading that took longer than the interval skips the missed ones.
            due = max(due + self._interval_s, self._clock())
            self._stop.wait(due - self._clock())
