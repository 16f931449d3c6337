"""An engine worker that breaks a call when told to. Imported by the engine's own processes."""

from __future__ import annotations

import dataclasses
import time
from typing import Any, Literal

from colocate.adapters.vllm.cpu_worker import ColocatedCPUWorker
from colocate.adapters.vllm.engine import VllmInference

HANG_S = 2.0


class FaultyWorker(ColocatedCPUWorker):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._fault: tuple[str, str] | None = None

    def misbehave(self, method: str, how: Literal["fail", "lie", "hang"]) -> None:
        """The next call of ``method`` raises, does nothing and says it did, or comes late."""
        self._fault = (method, how)

    def discard(self, tags: tuple[str, ...]) -> None:
        if not self._lies("discard"):
            super().discard(tags)

    def sleep(self, level: int = 1) -> None:
        if not self._lies("sleep"):
            super().sleep(level)

    def wake_up(self, tags: list[str] | None = None) -> None:
        if not self._lies("wake_up"):
            super().wake_up(tags)

    def collect_garbage(self) -> None:
        if not self._lies("collect_garbage"):
            super().collect_garbage()

    def _lies(self, method: str) -> bool:
        if self._fault is None or self._fault[0] != method:
            return False
        how, self._fault = self._fault[1], None
        if how == "fail":
            raise RuntimeError(f"scripted failure of {method}")
        if how == "hang":
            time.sleep(HANG_S)
        return how == "lie"


def make_faulty(engine: VllmInference) -> None:
    """Before it is started: gives the engine such workers."""
    engine._platform = dataclasses.replace(
        engine._platform, worker_cls="faulty_worker.FaultyWorker"
    )


async def misbehave(engine: VllmInference, method: str, how: str) -> None:
    await engine._running().collective_rpc("misbehave", args=(method, how))
