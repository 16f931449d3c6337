"""When a checkpoint is due, and which state of the trainer the newest one holds."""

from __future__ import annotations

from colocate.core.settings import Settings
from colocate.core.types import Version


class CheckpointSchedule:
    """Checkpoints come at swaps: the first one at which so many steps, or so much time, is over.

    Attributes:
        version: The training steps that the state on the disk has; what a life begins from counts.
    """

    def __init__(self, settings: Settings) -> None:
        self.version = Version(0)
        self._settings = settings
        self._since_s = 0.0

    def begin(self, version: Version, time_s: float) -> None:
        """A life begins, or goes back, from what is on the disk."""
        self.version, self._since_s = version, time_s

    def written(self, version: Version, time_s: float) -> Version:
        """One is whole. Returns the version of the one before."""
        before, self.version, self._since_s = self.version, version, time_s
        return before

    def is_due(self, version: Version, num_batches: int, time_s: float) -> bool:
        """Whether the swap that has trained ``num_batches``, up to ``version``, leaves one."""
        every, every_s = self._settings.checkpoint_every_steps, self._settings.checkpoint_every_s
        began = version - num_batches
        is_crossed = every > 0 and version // every > began // every
        is_overdue = every_s > 0 and time_s - self._since_s >= every_s
        return is_crossed or is_overdue or version >= self._settings.steps
