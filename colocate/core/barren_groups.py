"""Groups without a trainable token, and when a run that has no others must stop."""

from __future__ import annotations

from collections import Counter

from colocate.core.types import Version


class BarrenGroups:
    """Stops a run that samples group after group for a step, and masks each as a whole.

    Without it such a run would go on for ever, busy and to no effect: a policy that runs into
    ``rollout.max_turns`` every time under ``algorithm.overlong.mode=mask``, say.

    Args:
        limit: Groups for one step.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._version = Version(0)
        self._reasons: Counter[str] = Counter()

    def count(self, version: Version, reason: str | None) -> str | None:
        """Takes in a barren group; returns why the run must stop, or None.

        Args:
            version: The trainer's: groups are counted for the step that it takes next.
            reason: Why the group's last member was masked; None where it sampled nothing.
        """
        if version != self._version:
            self._version = version
            self._reasons.clear()
        self._reasons[reason or "no token was sampled"] += 1
        if self._reasons.total() < self._limit:
            return None
        often, count = self._reasons.most_common(1)[0]
        return (
            f"{self._reasons.total()} groups had no trainable token before step {version + 1} "
            f"could be filled; most often ({count} times): {often}. Let trajectories end by "
            "themselves (raise the limit that truncates them, or set "
            "algorithm.overlong.mode=keep), or look at what the environment calls invalid"
        )
