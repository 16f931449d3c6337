"""The adaptive swap policy: leave when staying has become worth less than the average.

A cycle is a rollout and the swap that ends it. By the marginal value theorem (Charnov 1976; in
general, renewal reward with optimal stopping) the long-run rate of useful tokens is greatest where
the rollout is left as soon as what it brings falls below the cycle's average

    g = useful tokens / (rollout seconds + seconds of the swap)

Training itself has no vote: its time goes with the tokens that are trained, whenever that is.
Compared are: leaving now, and staying for ``h`` seconds more, for the h that speaks most for it,

    advantage(h) = (1 - share) x (tokens(h) + tokens lost now - at h)
                   - g x h + g x (swap cost now - at h)
                   + place x (expected trajectories trained at h - now)

where *lost* are tokens of trajectories that the swap would make too stale to be trained, and
*place* is what a new trajectory would bring in the place of a trained one: finished trajectories
whose group waits for its last member, or whose batch is not full, go on taking up admission.
*share* is *place* as a share of a whole trajectory. Of one that is carried, what it has left to
sample is worth so much in its place, so that sampling it now gains the rest: 1 - share. With a
saturated engine both are 0, and tokens count when they are sampled; where admission is what limits,
they count when they are trained.

Batches are whole, and groups end by chance: the trajectories that will be trained are expected over
the distribution of full batches (``batch_outlook``).

The threshold g is the average over past cycles and the present one, so each cycle is played with
the average of those before: Dinkelbach's iteration (1967), which converges to the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from colocate.core.batch_outlook import chances_of_batches
from colocate.core.cost import CostModel, SwapCost
from colocate.core.outlook import Outlook, look_ahead
from colocate.core.prospects import Groups, Loss, RolloutView, Stay, Swap, Why
from colocate.core.types import TrajectoryId

ASKS_PER_CYCLE = 16
"""How many times the question is asked anew in one cycle, about."""
LONGEST_HORIZON = 2.0
"""In lengths of the cycle so far; what lies beyond it cannot make up for its wait."""

ASSUMED_SWAP = 2.0
"""What a swap is taken to cost before one was seen, in lengths of the rollout so far."""

NEGLIGIBLE = 1e-3
"""A chance below it is not computed to its end."""

MAX_GROUPS = 256
"""Of more incomplete groups than this, an evenly spaced part is looked at."""


@dataclass(slots=True)
class _Score:
    """Of the best horizon: by how much the rate while staying differs from the average, as a share
    of the average; and what it was computed from."""

    share: float
    horizon: Outlook | None
    why: Why


class Adaptive:
    """Remembers, within one rollout, when to ask again and whether leaving was indicated before.

    Args:
        warmup_swaps: Swaps that are seen before their measured cost is relied upon.
        hysteresis: Within this share of the average, leaving must be indicated twice.
    """

    def __init__(
        self,
        costs: CostModel,
        *,
        group_size: int,
        groups_per_step: int,
        max_requests: int,
        warmup_swaps: int,
        hysteresis: float,
    ) -> None:
        self._costs = costs
        self._group_size = group_size
        self._groups_per_step = groups_per_step
        self._max_requests = max_requests
        self._warmup_swaps = warmup_swaps
        self._hysteresis = hysteresis
        self._rollout_started_s = -1.0
        self._ask_at_s = 0.0
        self._num_ready = 0
        self._was_indicated = False

    def decide(self, view: RolloutView) -> Swap | Stay:
        if view.rollout_started_s != self._rollout_started_s:
            self._rollout_started_s = view.rollout_started_s
            self._ask_at_s, self._num_ready, self._was_indicated = 0.0, 0, False
        ready = min(view.num_ready_batches, view.max_batches, view.num_steps_left)
        if ready < 1:
            return Stay()
        if ready == min(view.max_batches, view.num_steps_left):
            return Swap(ready, self._why(view, "as many batches are ready as may be trained"))
        if view.num_unfinished == 0:
            num_batches, _ = self._choose(view, self._predict(view), ready)
            return Swap(num_batches, self._why(view, "nothing is unfinished"))
        is_news = ready != self._num_ready
        if view.time_s < self._ask_at_s and not is_news:
            return Stay(until_s=self._ask_at_s)
        swap = self._predict(view)
        rollout_s = view.time_s - view.rollout_started_s
        again_s = view.time_s + max(1e-3, (rollout_s + swap.total_s.value) / ASKS_PER_CYCLE)
        if view.suffices:
            return self._finish(view, swap, ready, again_s)
        return self._weigh(view, swap, ready, again_s, is_news=is_news)

    def _predict(self, view: RolloutView) -> SwapCost:
        """What a swap would cost now; before enough of them were seen, in proportion.

        Like the rule for renting skis: whatever the swap turns out to cost, what was waited in vain
        is in proportion to what the rollout took. It errs to the long side: an early swap that
        turns out dear costs more than some idle time, once.
        """
        swap = self._costs.predict_swap()
        if self._costs.num_cycles >= self._warmup_swaps:
            return swap
        rollout_s = view.time_s - view.rollout_started_s
        return SwapCost.assumed(ASSUMED_SWAP * rollout_s, swap.reprefill_s)

    def _finish(self, view: RolloutView, swap: SwapCost, ready: int, again_s: float) -> Swap | Stay:
        """Nobody new is needed: a swap now would be one more, and would not fill the engine.

        It pays only where all that are left wait for environments, and more likely than not for
        longer than it takes: they wait while it trains as well.
        """
        workload = self._costs.workload
        self._ask_at_s, self._num_ready = again_s, ready
        busy = workload.num_decoding or workload.num_queued
        if busy or workload.quiet_chance(view.time_s, swap.total_s.value) < 0.5:
            return Stay(until_s=again_s)
        num_batches, loss = self._choose(view, swap, ready)
        reason = "all that are left wait for environments, for longer than a swap takes"
        return Swap(num_batches, self._why(view, reason, swap=swap, loss=loss))

    def _weigh(
        self, view: RolloutView, swap: SwapCost, ready: int, again_s: float, *, is_news: bool
    ) -> Swap | Stay:
        num_batches, loss = self._choose(view, swap, ready)
        score = self._score(view, swap, num_batches, loss)
        indicated = score.share < self._hysteresis if self._was_indicated else score.share <= 0
        if indicated and (self._was_indicated or score.share < -self._hysteresis):
            return Swap(num_batches, score.why)
        self._was_indicated = indicated
        self._ask_at_s, self._num_ready = again_s, ready
        return Stay(until_s=again_s, why=score.why if is_news else None)

    def _choose(self, view: RolloutView, swap: SwapCost, ready: int) -> tuple[int, Loss]:
        """How many of the ready batches to train.

        Each batch more makes place for new trajectories and bears its share of the swap's cost;
        and it makes what is carried one version older: tokens that this makes too old are lost.
        """
        costs = self._costs
        rollout_s = view.time_s - view.rollout_started_s
        average = costs.cycle_rate(rollout_s, view.time_s, swap)
        share = average * swap.total_s.value / ready
        worth = costs.place_tokens(rollout_s) * self._group_size * self._groups_per_step + share
        best: tuple[float, int, Loss] | None = None
        for num_batches in range(ready, 0, -1):
            loss = view.loss_of(num_batches)
            value = num_batches * worth - (1 - costs.place_share(rollout_s)) * loss.num_tokens
            if best is None or value > best[0]:
                best = value, num_batches, loss
            if not loss.num_tokens:
                break  # fewer batches lose nothing less
        assert best is not None
        return best[1], best[2]

    def _score(self, view: RolloutView, swap: SwapCost, num_batches: int, loss: Loss) -> _Score:
        costs, workload = self._costs, self._costs.workload
        rollout_s = view.time_s - view.rollout_started_s
        average = costs.cycle_rate(rollout_s, view.time_s, swap)
        decode_rate = workload.decode.rate(min(workload.num_decoding, self._max_requests))
        numbers = self._why(
            view,
            "staying brings less than the cycle's average",
            swap=swap,
            average=average,
            loss=loss,
        )
        longest_s = LONGEST_HORIZON * (rollout_s + swap.total_s.value)
        # Nothing was sampled yet, in this cycle or before; or the first cycle has just begun.
        if average <= 0 or longest_s <= 0:
            return _Score(1.0, None, numbers)
        share_of_place = costs.place_share(rollout_s)
        rate_now = decode_rate.value * (1 - share_of_place)
        if not loss.num_tokens and rate_now > average * (1 + self._hysteresis):
            return _Score(rate_now / average - 1, None, numbers)
        best, best_horizon = -1.0, None
        ready = min(view.num_ready_batches, view.max_batches)
        batch_size = self._group_size * self._groups_per_step
        groups, turn_s, place = view.groups(), workload.turn_s(), costs.place_tokens(rollout_s)
        for outlook in look_ahead(
            workload,
            time_s=view.time_s,
            longest_s=longest_s,
            max_requests=self._max_requests,
        ):
            further = even = 0.0
            batches = self._batches_at(view, groups, outlook.horizon_s, turn_s)
            for number, chance in batches.items():
                more = max(0, min(number, view.max_batches) - ready)
                further += chance * more
                even += chance * _evenness(view, ready, more)
            rescued = self._rescued(view.time_s, outlook, loss, turn_s)
            advantage = self._advantage(view, outlook, average, loss, rescued, 1 - share_of_place)
            advantage += place * further * batch_size
            advantage += average * swap.total_s.value * even
            share = advantage / (average * outlook.horizon_s)
            if share > best:
                best, best_horizon = share, outlook
        if best_horizon is not None:
            numbers = numbers.with_horizon(best_horizon.horizon_s, best_horizon.num_tokens)
        return _Score(best, best_horizon, numbers)

    def _batches_at(
        self, view: RolloutView, groups: Groups, horizon_s: float, turn_s: float
    ) -> dict[int, float]:
        """Chances of the numbers of full batches by then."""
        stride = 1 + len(groups.unfinished) // MAX_GROUPS
        chances = [
            self._completion(members, view.time_s, horizon_s, turn_s)
            for members in groups.unfinished[::stride]
        ]
        return chances_of_batches(
            groups.num_complete, chances, self._groups_per_step, stride=stride
        )

    def _advantage(
        self,
        view: RolloutView,
        outlook: Outlook,
        average: float,
        loss: Loss,
        rescued: float,
        weight: float,
    ) -> float:
        """Of staying so long, but for places; ``weight``: what a token sampled now counts."""
        workload = self._costs.workload
        tokens = outlook.num_tokens
        # Context that would not be parked any more, less what would be longer by then.
        unfinished = max(1, view.num_unfinished)
        shorter = workload.num_parked_context * min(1.0, outlook.num_finished / unfinished)
        saved = workload.decode.prefill_s(1).times(shorter - tokens)
        saved_s = saved.value if math.isfinite(saved.error) else 0.0
        wasted = tokens * loss.num_unfinished / unfinished * (1 - rescued)
        gained = tokens - wasted + rescued * loss.num_tokens
        return weight * gained + average * (saved_s - outlook.horizon_s)

    def _rescued(self, time_s: float, outlook: Outlook, loss: Loss, turn_s: float) -> float:
        """The share of the tokens at stake whose groups would be complete by then, and trained."""
        if not loss.num_tokens:
            return 0.0
        saved = sum(
            num_tokens * self._completion(unfinished, time_s, outlook.horizon_s, turn_s)
            for num_tokens, unfinished in loss.groups
        )
        return saved / loss.num_tokens

    def _completion(
        self, members: Iterable[TrajectoryId], time_s: float, horizon_s: float, turn_s: float
    ) -> float:
        """The chance that all of them are complete by then."""
        chance = 1.0
        for trajectory in members:
            chance *= self._costs.workload.completion(trajectory, time_s, horizon_s, turn_s)
            if chance < NEGLIGIBLE:
                break
        return chance

    def _why(
        self,
        view: RolloutView,
        reason: str,
        *,
        swap: SwapCost | None = None,
        average: float | None = None,
        loss: Loss | None = None,
    ) -> Why:
        workload = self._costs.workload
        swap = swap or self._costs.predict_swap()
        rate = workload.decode.rate(min(workload.num_decoding, self._max_requests))
        known = self._costs.num_cycles > 0
        rollout_s = view.time_s - view.rollout_started_s
        if average is None and known:
            average = self._costs.cycle_rate(rollout_s, view.time_s, swap)
        return Why(
            reason=reason,
            current_rate=_known(rate.value, rate.error),
            cycle_rate=None if average is None else _round(average),
            swap_cost_s=_round(swap.total_s.value) if known else None,
            swap_cost_error_s=_known(swap.total_s.error, swap.total_s.error) if known else None,
            reprefill_s=_known(swap.reprefill_s.value, swap.reprefill_s.error),
            lost_tokens=None if loss is None else loss.num_tokens,
            place_tokens=_round(self._costs.place_tokens(rollout_s)) if known else None,
        )


def _evenness(view: RolloutView, ready: int, further: int) -> float:
    """By how many swaps more than on average it pays to wait for further batches.

    The steps that are left take a whole number of swaps. With ``s`` of them left, ``b`` batches a
    swap instead of ``j`` save ``ceil(s / j) - ceil(s / b)`` swaps over ``ceil(s / b)`` cycles. The
    average, which knows no end, counts ``b / j - 1`` a cycle.
    """
    if further < 1:
        return 0.0
    left = view.num_steps_left
    num_swaps, num_fewer = math.ceil(left / ready), math.ceil(left / (ready + further))
    return num_swaps / num_fewer - (ready + further) / ready


def _known(value: float, error: float) -> float | None:
    return _round(value) if math.isfinite(error) else None


def _round(value: float) -> float:
    """To what a person reads; and a replay on another machine writes the same."""
    return float(f"{value:.6g}")
