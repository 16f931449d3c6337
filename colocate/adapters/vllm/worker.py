"""What our engine workers answer on every device, on top of vLLM's own workers."""

from __future__ import annotations

from typing import Any


class ColocatedWorker:
    """Mixed into a vLLM worker class, before it."""

    def expected_weight_names(self) -> list[str]:
        """Names of the tensors that make one complete weight update, sorted."""
        names: list[str] = self._transfer_engine().expected_names()
        return names

    def residency(self) -> dict[str, int]:
        """Bytes held now, by wake tag: ``{"weights": ..., "kv_cache": ...}``."""
        raise TypeError(f"{type(self).__name__} must say what it holds")

    def collect_garbage(self) -> None:
        """Gives the device what only Python or an allocator of this process still keeps."""
        raise TypeError(f"{type(self).__name__} must say how it gives memory back")

    def start_weight_update(self) -> None:
        """As vLLM's, but also after an update that was broken off."""
        self._weight_update_active = False
        super().start_weight_update()  # type: ignore[misc]

    def weight_update_seconds(self) -> dict[str, float]:
        """What the last weight update took, by part."""
        seconds: dict[str, float] = self._transfer_engine().seconds
        return seconds

    def break_off_weight_update(self) -> None:
        """Lets go of the sender's memory where an update will not be finished."""
        self._transfer_engine().break_off()

    def copy_bucket(self, bucket: dict[str, Any] | None) -> float:
        """Copies a bucket and changes nothing; returns the seconds. None frees the copy."""
        if bucket is None:
            self._transfer_engine().drop_copies()
            return 0.0
        seconds: float = self._transfer_engine().copy_bucket(**bucket)
        return seconds

    def _transfer_engine(self) -> Any:
        return self.weight_transfer_engine  # type: ignore[attr-defined]
