"""The adaptive policy on a workload whose optimum has a closed form.

N requests begin together in each cycle; the i-th takes i/N x L seconds; a token takes a constant
time whatever the concurrency. So the rate falls in a line to 0 at L, and after a rollout of T
seconds, with a swap of C seconds, the useful tokens are

    u(T) = N / token_s x (T - T^2 / 2 L)

The optimum of u / (T + C) is where u' (T + C) = u:  T* = sqrt(C^2 + 2 C L) - C.
"""

from __future__ import annotations

import math

import pytest

from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.adaptive import Adaptive
from colocate.core.cost import OVERHEAD, CostModel
from colocate.core.phases import Phase
from colocate.core.prospects import RolloutView, Stay, Swap
from colocate.core.types import (
    Ending,
    FinishReason,
    GroupId,
    SleepMode,
    Span,
    TrajectoryId,
    Version,
)

NUM = 200
TOKEN_S = 0.02


class EndlessPlaces(CostModel):
    """Each cycle of this world begins with as many trajectories, whatever the last one left."""

    def place_tokens(self, rollout_s: float) -> float:
        return 0.0


class RenewalWorld:
    """Every cycle is the same; what is unfinished when it ends is taken away, and was of use."""

    def __init__(self, policy: Adaptive, costs: CostModel, *, longest_s: float, swap_s: float):
        self.policy, self.costs = policy, costs
        self.longest_s, self.swap_s = longest_s, swap_s
        self.time_s = 0.0
        self._next = 0

    def cycle(self, leave_after_s: float | None = None) -> tuple[float, Swap | None]:
        """One rollout and its swap; returns how long the rollout was, and the decision."""
        began_s, first = self.time_s, self._next
        self._next += NUM
        for i in range(NUM):
            self._begin(TrajectoryId(first + i))
        ends = [(began_s + (i + 1) / NUM * self.longest_s, i) for i in range(NUM)]
        decision: Swap | None = None
        ask_s = began_s + self.longest_s / 20
        while decision is None:
            if leave_after_s is not None and self.time_s >= began_s + leave_after_s:
                break
            if ends and ends[0][0] <= ask_s:
                self.time_s, i = ends.pop(0)
                self._end(TrajectoryId(first + i), began_s)
                continue
            self.time_s = ask_s
            if leave_after_s is not None:
                ask_s += self.longest_s / 100
                continue
            said = self.policy.decide(self._view(began_s, len(ends)))
            if isinstance(said, Stay):
                assert said.until_s is not None
                assert said.until_s > self.time_s
                ask_s = said.until_s
            else:
                decision = said
        rollout_s = self.time_s - began_s
        self.costs.leave_rollout(rollout_s)
        for _, i in ends:
            self._end(TrajectoryId(first + i), began_s, aborted=True)
        for i in range(NUM):
            end = act.EndTrajectory(
                trajectory=TrajectoryId(first + i), ending=Ending.TRAINED, reason=""
            )
            self.costs.follow([end], self.time_s)
        self.time_s += self.swap_s
        line = act.CloseSwap(
            swap=1,
            version=Version(1),
            mode=SleepMode.PAUSE,
            offloaded=(),
            awake_bytes=None,
            asleep_bytes=None,
            engine_released_bytes=None,
            peak_bytes=None,
            phase_s={phase: self.swap_s / len(OVERHEAD) for phase in OVERHEAD},
        )
        self.costs.learn(ev.PhaseEnded(time_s=self.time_s, phase=Phase.PUBLISHING))
        self.costs.follow([line], self.time_s)
        return rollout_s, decision

    def _view(self, began_s: float, num_unfinished: int) -> RolloutView:
        return RolloutView(
            time_s=self.time_s,
            rollout_started_s=began_s,
            num_ready_batches=1,
            num_fillable_batches=lambda: 9,
            num_unfinished=num_unfinished,
            num_steps_left=1000,
            max_batches=9,
        )

    def _begin(self, trajectory: TrajectoryId) -> None:
        start = act.StartTrajectory(trajectory=trajectory, group=GroupId(trajectory))
        self.costs.follow([start], self.time_s)
        self.costs.learn(
            ev.TurnReady(
                time_s=self.time_s,
                trajectory=trajectory,
                attempt=0,
                num_context_tokens=0,
                busy_s=0.001,
                base="",
                digest="a",
            )
        )
        submit = act.SubmitRequest(trajectory=trajectory, request=f"{trajectory}")
        self.costs.follow([submit], self.time_s)

    def _end(self, trajectory: TrajectoryId, began_s: float, *, aborted: bool = False) -> None:
        num_tokens = max(1, round((self.time_s - began_s) / TOKEN_S))
        self.costs.learn(
            ev.RequestEnded(
                time_s=self.time_s,
                trajectory=trajectory,
                attempt=0,
                request=f"{trajectory}",
                finish_reason=FinishReason.ABORT if aborted else FinishReason.STOP,
                spans=(Span(version=Version(0), length=num_tokens),),
                num_cached_tokens=0,
                base="a",
                digest="b",
            )
        )
        if not aborted:
            self.costs.learn(
                ev.TrajectoryFinished(
                    time_s=self.time_s,
                    trajectory=trajectory,
                    attempt=0,
                    reward=1.0,
                    busy_s=0.0,
                    base="b",
                )
            )


@pytest.mark.parametrize("swap_s", [2.0, 10.0, 40.0])
def test_the_policy_leaves_at_the_optimum_of_the_marginal_value_theorem(swap_s: float) -> None:
    longest_s = 40.0
    optimum_s = math.sqrt(swap_s**2 + 2 * swap_s * longest_s) - swap_s

    def rate(rollout_s: float) -> float:
        return (rollout_s - rollout_s**2 / (2 * longest_s)) / (rollout_s + swap_s)

    costs = EndlessPlaces()
    policy = Adaptive(
        costs,
        group_size=1,
        groups_per_step=1,
        max_requests=NUM,
        warmup_swaps=0,
        hysteresis=0.02,
    )
    world = RenewalWorld(policy, costs, longest_s=longest_s, swap_s=swap_s)
    for _ in range(3):
        world.cycle(leave_after_s=longest_s / 10)
    for _ in range(12):
        world.cycle()
    left = [world.cycle()[0] for _ in range(4)]
    for rollout_s in left:
        assert rollout_s == pytest.approx(optimum_s, rel=0.2)
        assert rate(rollout_s) >= 0.99 * rate(optimum_s)


def test_a_decision_carries_the_numbers_it_was_taken_on() -> None:
    costs = EndlessPlaces()
    policy = Adaptive(
        costs, group_size=1, groups_per_step=1, max_requests=NUM, warmup_swaps=0, hysteresis=0.02
    )
    world = RenewalWorld(policy, costs, longest_s=40.0, swap_s=10.0)
    for _ in range(3):
        world.cycle(leave_after_s=4.0)
    _, decision = world.cycle()
    assert decision is not None
    why = decision.why
    assert why.current_rate is not None
    assert why.cycle_rate is not None
    assert why.current_rate < why.cycle_rate
    assert why.swap_cost_s == pytest.approx(10.0, rel=0.01)
