"""Who had the device in the last minute."""

from __future__ import annotations

from collections import deque

from colocate.core.phases import Phase
from colocate.report.words import Owner, owner_of


class DeviceTimeline:
    """Remembers changes of phase for ``window_s`` seconds.

    Times come from the caller and must not fall.
    """

    def __init__(self, window_s: float = 60.0) -> None:
        self.window_s = window_s
        self._changes: deque[tuple[float, Owner]] = deque()

    def enter(self, phase: Phase, time_s: float) -> None:
        """The run is in ``phase`` from ``time_s`` on. Saying so again changes nothing."""
        owner = owner_of(phase)
        if not self._changes or self._changes[-1][1] is not owner:
            self._changes.append((time_s, owner))
        while len(self._changes) > 1 and self._changes[1][0] <= time_s - self.window_s:
            self._changes.popleft()

    def shares(self, now_s: float) -> dict[Owner, float]:
        """What part of the remembered time each owner had: sums to 1 once time has passed."""
        begin_s = now_s - self.window_s
        held: dict[Owner, float] = {}
        for start_s, end_s, owner in self._intervals(now_s):
            inside_s = end_s - max(start_s, begin_s)
            held[owner] = held.get(owner, 0.0) + max(0.0, inside_s)
        whole = sum(held.values())
        return {owner: part / whole for owner, part in held.items()} if whole > 0 else {}

    def cells(self, now_s: float, num_cells: int) -> list[Owner | None]:
        """The window cut in ``num_cells``, the oldest first: who had most of each.

        ``None`` where the run had not begun.
        """
        width_s = self.window_s / num_cells
        begin_s = now_s - self.window_s
        shares: list[dict[Owner, float]] = [{} for _ in range(num_cells)]
        for start_s, end_s, owner in self._intervals(now_s):
            start, end = (max(0.0, (t - begin_s) / width_s) for t in (start_s, end_s))
            for cell in range(int(start), min(num_cells, int(end) + 1)):
                held = min(end, cell + 1) - max(start, cell)
                if held > 0:
                    shares[cell][owner] = shares[cell].get(owner, 0.0) + held
        return [max(held, key=lambda o: held[o]) if held else None for held in shares]

    def _intervals(self, now_s: float) -> list[tuple[float, float, Owner]]:
        changes = list(self._changes)
        ends_s = [*(start_s for start_s, _ in changes[1:]), now_s]
        return [(s, max(s, e), o) for (s, o), e in zip(changes, ends_s, strict=False)]
