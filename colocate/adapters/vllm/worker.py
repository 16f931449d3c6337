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

    def start_weight_update(self) -> None:
        """As vLLM's, but also after an update that was broken off."""
        self._weight_update_active = False
        super().start_weight_update()  # type: ignore[misc]

    def _transfer_engine(self) -> Any:
        return self.weight_transfer_engine  # type: ignore[attr-defined]
