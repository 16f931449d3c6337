"""When the rollout is left: the policy's word, and the hold for partials that would expire."""

from __future__ import annotations

from dataclasses import asdict

from colocate.core.actions import Action, Decide, SetTimer
from colocate.core.buffer import Buffer
from colocate.core.cost import CostModel
from colocate.core.prospects import Loss, RolloutView, Stay, Why, groups_of, loss_of_swap
from colocate.core.settings import Settings
from colocate.core.staleness import max_swap_interval
from colocate.core.swap_policy import make_policy
from colocate.core.trajectory import ProtocolError
from colocate.core.types import Version


class Departure:
    """Asks the policy; keeps what it must remember between two answers."""

    def __init__(self, settings: Settings, buffer: Buffer, costs: CostModel) -> None:
        self._settings = settings
        self._buffer = buffer
        self._costs = costs
        self._policy = make_policy(settings, costs)
        self._wanted_since_s: float | None = None
        self._asked_until_s: float | None = None

    def consider(
        self, version: Version, *, now_s: float, rollout_started_s: float
    ) -> tuple[int, list[Action]]:
        """How many batches to swap for now, 0 for none; and the decision's line, and timers."""
        settings = self._settings
        num_steps_left = settings.steps - version
        max_batches = min(max_swap_interval(settings.max_staleness), num_steps_left)

        def loss_of(num_batches: int) -> Loss:
            """After the last step nothing is trained, so nothing is lost to age."""
            if num_batches >= num_steps_left:
                return Loss()
            return loss_of_swap(self._buffer, version, num_batches)

        view = RolloutView(
            time_s=now_s,
            rollout_started_s=rollout_started_s,
            num_ready_batches=len(self._buffer.plan(version, max_batches)),
            num_fillable_batches=lambda: self._buffer.num_fillable_batches(version, max_batches),
            num_unfinished=self._num_unfinished(),
            num_steps_left=num_steps_left,
            max_batches=max_batches,
            suffices=self._suffices(version, num_steps_left),
            loss_of=loss_of,
            groups=lambda: groups_of(self._buffer),
        )
        decision = self._policy.decide(view)
        if isinstance(decision, Stay):
            self._wanted_since_s = None
            line = [] if decision.why is None else [self._line(view, 0, decision.why)]
            return 0, [*line, *self._ask_again(decision.until_s)]
        if not 1 <= decision.num_batches <= view.num_ready_batches:
            raise ProtocolError(f"the policy wants {decision.num_batches} batches of {view}")
        if hold_until_s := self._hold(version, decision.num_batches, num_steps_left, now_s):
            return 0, self._ask_again(hold_until_s)
        self._wanted_since_s = None
        self._costs.leave_rollout(now_s - rollout_started_s)
        return decision.num_batches, [self._line(view, decision.num_batches, decision.why)]

    def _line(self, view: RolloutView, num_batches: int, why: Why) -> Decide:
        workload = self._costs.workload
        return Decide(
            policy=self._settings.policy,
            num_batches=num_batches,
            num_ready_batches=view.num_ready_batches,
            rollout_s=round(view.time_s - view.rollout_started_s, 6),
            num_unfinished=view.num_unfinished,
            num_decoding=workload.num_decoding,
            num_waiting=workload.num_waiting,
            num_queued=workload.num_queued,
            **asdict(why),
        )

    def _suffices(self, version: Version, num_steps_left: int) -> bool:
        buffer = self._buffer
        if buffer.num_groups < self._settings.groups_per_step * num_steps_left:
            return False
        return buffer.num_fillable_batches(version, num_steps_left) >= num_steps_left

    def _num_unfinished(self) -> int:
        """Of what is needed: as many groups as are spare may stay unfinished."""
        spare = self._settings.redundant_groups
        if spare and len(self._buffer.incomplete_groups) <= spare:
            return 0
        return self._buffer.num_unfinished

    def _ask_again(self, at_s: float | None) -> list[Action]:
        if at_s is None or at_s == self._asked_until_s:
            return []
        self._asked_until_s = at_s
        return [SetTimer(timer="swap", at_s=at_s)]

    def _hold(
        self, version: Version, num_batches: int, num_steps_left: int, now_s: float
    ) -> float | None:
        """Until when the swap is held for unfinished work that it would expire, if at all."""
        if num_batches >= num_steps_left:
            return None  # nothing is trained after it, so nothing expires
        if self._wanted_since_s is None:
            self._wanted_since_s = now_s
        until_s = self._wanted_since_s + self._settings.expiry_grace_s
        if now_s >= until_s:
            return None
        stale = self._buffer.stale_groups(Version(version + num_batches))
        unfinished = any(m.is_unfinished for g in stale for m in self._buffer.members(g))
        return until_s if unfinished else None
