"""The cost model on streams whose parameters are known: it converges, also through outliers."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from colocate.config import SimEngineConfig
from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.cost import CostModel
from colocate.core.decoding import DecodeModel
from colocate.core.estimates import RobustLine, median
from colocate.core.phases import Phase
from colocate.core.scheduler import Scheduler
from colocate.core.survival import Survival, pool
from colocate.core.types import (
    FinishReason,
    GroupId,
    Part,
    SleepMode,
    Span,
    TrajectoryId,
    Version,
)
from colocate.core.workload import Workload
from colocate.sim.cluster import Cluster
from tools.policy_bench.families import BASE, Family, constant

OUTLIERS = 0.05


def spoil(draw: random.Random, value: float, share: float = OUTLIERS) -> float:
    """Now and then nonsense: twenty to a hundred times too much."""
    return value * draw.uniform(20, 100) if draw.random() < share else value


@pytest.mark.parametrize("share", [0.0, OUTLIERS])
def test_a_line_is_found_through_outliers_and_its_error_covers_the_truth(share: float) -> None:
    covered = 0
    for seed in range(60):
        draw = random.Random(seed)
        line = RobustLine()
        for _ in range(24):
            x = draw.uniform(1, 10)
            line.observe(x, spoil(draw, 0.5 + 0.2 * x + draw.gauss(0, 0.05), share))
        found = line.predict(6.0)
        covered += abs(found.value - 1.7) <= 2 * found.error
        assert found.value == pytest.approx(1.7, rel=0.1)
    assert covered >= 0.85 * 60


def test_a_line_through_points_of_one_size_is_their_median() -> None:
    line = RobustLine()
    for y in (1.0, 1.2, 0.8, 50.0, 1.1):
        line.observe(2e9, y)
    assert line.predict(2e9).value == 1.1
    assert line.slope() == 0.0


def test_nothing_seen_is_known_to_be_unknown() -> None:
    assert math.isinf(RobustLine().predict(1.0).error)
    costs = CostModel()
    assert math.isinf(costs.predict_swap().total_s.error)
    assert costs.prediction_of() is None
    assert math.isinf(costs.workload.decode.rate(8).error)


def fed_decode_model(draw: random.Random, share: float) -> DecodeModel:
    model = DecodeModel()
    for _ in range(600):
        concurrency = 2 ** draw.uniform(0, 7)
        num_tokens = draw.randint(10, 200)
        num_prefilled = draw.uniform(0, 4000)
        exact_s = num_tokens * (0.02 + 2e-4 * concurrency) + 3e-5 * num_prefilled
        model.observe(
            num_tokens=num_tokens,
            duration_s=spoil(draw, exact_s * draw.uniform(0.97, 1.03), share),
            concurrency=concurrency,
            num_prefilled=num_prefilled,
        )
    return model


@pytest.mark.parametrize("share", [0.0, OUTLIERS])
def test_decode_and_prefill_rates_are_told_apart(share: float) -> None:
    model = fed_decode_model(random.Random(3), share)
    for concurrency in (1, 16, 100):
        expected = concurrency / (0.02 + 2e-4 * concurrency)
        found = model.rate(concurrency)
        assert found.value == pytest.approx(expected, rel=0.03)
        assert abs(found.value - expected) <= 4 * found.error
    assert model.prefill_s(1).value == pytest.approx(3e-5, rel=0.15)


def test_the_errors_of_the_decode_rate_cover_the_truth() -> None:
    covered = 0
    for seed in range(12):
        model = fed_decode_model(random.Random(seed), OUTLIERS)
        found = model.rate(32)
        covered += abs(found.value - 32 / 0.0264) <= 2 * found.error
    assert covered >= 9


@pytest.mark.parametrize("share", [0.0, OUTLIERS])
def test_latencies_are_known_by_their_distribution(share: float) -> None:
    draw = random.Random(1)
    latency = Survival(1e-4)
    for _ in range(4000):
        latency.end(spoil(draw, draw.paretovariate(1.5), share))
    for x in (1.5, 3.0, 6.0):
        assert latency.beyond(x) == pytest.approx(x**-1.5, abs=0.03 + share)
    assert latency.quantile(0.5) == pytest.approx(2 ** (1 / 1.5), rel=0.15)


def test_of_a_heavy_tail_the_longer_it_lasted_the_longer_it_will() -> None:
    draw = random.Random(2)
    latency = Survival(1e-4)
    for _ in range(4000):
        latency.end(draw.paretovariate(1.5))
    assert latency.still(1.0, 2.0) < latency.still(5.0, 2.0) < latency.still(20.0, 2.0) < 1


def test_what_is_cut_off_is_no_end() -> None:
    """Half are given up at 1 s; a mean of what was seen to end would say 0.5 s too little."""
    draw = random.Random(4)
    seen = Survival(1e-4)
    for _ in range(4000):
        lasts = draw.expovariate(1.0)
        limit = 1.0 if draw.random() < 0.5 else math.inf
        if lasts <= limit:
            seen.end(lasts)
        else:
            seen.cut_off(limit)
    assert seen.beyond(2.0) == pytest.approx(math.exp(-2), abs=0.03)


def test_ages_are_pooled_without_loss() -> None:
    ages = [random.Random(5).expovariate(0.1) for _ in range(200)]
    pooled = pool(ages)
    assert sum(count for _, count in pooled) == 200
    assert sum(age * count for age, count in pooled) == pytest.approx(sum(ages))
    assert len(pooled) < 60


def test_the_completion_hazard_is_learned_by_turn() -> None:
    workload = Workload()
    for _ in range(200):
        workload.turns.observe(1, is_over=False)
        workload.turns.observe(2, is_over=True)
    assert workload.turns.hazard(1) < 0.02
    assert workload.turns.hazard(2) > 0.98


class _ClosedSwaps(list[act.CloseSwap]):
    def on_event(self, event: ev.Event, actions: Sequence[act.Action], _: Scheduler) -> None:
        self += [action for action in actions if isinstance(action, act.CloseSwap)]


def run_of(family: Family, *, steps: int) -> tuple[Cluster, list[act.CloseSwap]]:
    closed = _ClosedSwaps()
    settings = replace(family.with_policy("interval", 2), steps=steps)
    cluster = Cluster(settings, family.world(0), watchers=[closed])
    cluster.run()
    return cluster, closed


def test_a_whole_run_teaches_the_parameters_of_its_world() -> None:
    """By way of the scheduler's own events, and the swap's prediction is in each swap's line."""
    engine = SimEngineConfig(pass_s=0.02, sequence_s=2e-4, prefill_token_s=1e-4)
    family = Family(
        latency=constant(0.5),
        swap_s=6.0,
        prompt_tokens=400,
        engine=engine,
        # No group has a second member, whose prompt the engine would have cached.
        settings=replace(BASE, group_size=1, groups_per_step=16),
    )
    cluster, closed_swaps = run_of(family, steps=24)
    fit = cluster.scheduler.costs.workload.decode.fit()
    assert fit is not None
    assert fit.token_s(40) == pytest.approx(0.02 + 40 * 2e-4, rel=0.1)
    assert fit.per_prefill_token_s == pytest.approx(1e-4, rel=0.3)
    costs = cluster.scheduler.costs
    assert costs.training_s(5000).value == pytest.approx(1.0 + 5000 * 2e-4, rel=0.1)
    first, *later = closed_swaps
    assert first.predicted_cost_s is None
    assert all(s.predicted_cost_s == pytest.approx(s.cost_s, rel=0.01) for s in later)


def test_what_was_learned_survives_a_restart() -> None:
    cluster, _ = run_of(Family(latency=constant(0.5), swap_s=6.0), steps=12)
    costs = cluster.scheduler.costs
    again = CostModel()
    again.restore(json.loads(json.dumps(costs.snapshot())))
    assert again.snapshot() == costs.snapshot()
    assert again.workload.decode.rate(20) == costs.workload.decode.rate(20)
    assert again.prediction_of() == costs.prediction_of()
    assert again.place_tokens(5.0) == costs.place_tokens(5.0) > 0


def test_data_of_another_schema_is_refused() -> None:
    with pytest.raises(ValueError, match="schema 99"):
        CostModel().restore({"schema": 99})


def test_answers_to_a_trajectory_that_is_gone_teach_nothing() -> None:
    costs = CostModel()
    here, group = TrajectoryId(0), GroupId(0)
    costs.follow([act.StartTrajectory(trajectory=here, group=group, attempt=1)], 0.0)
    costs.learn(
        ev.TurnReady(
            time_s=1.0,
            trajectory=here,
            attempt=0,
            num_context_tokens=5,
            busy_s=1.0,
            base="",
            digest="a",
        )
    )
    costs.learn(
        ev.RequestEnded(
            time_s=2.0,
            trajectory=TrajectoryId(7),
            attempt=0,
            request="7.0",
            finish_reason=FinishReason.STOP,
            spans=(Span(version=Version(0), length=3),),
            num_cached_tokens=0,
            base="",
            digest="b",
        )
    )
    workload = costs.workload
    assert (workload.num_waiting, workload.num_queued, workload.num_decoding) == (1, 0, 0)
    assert workload.begin_s.num_ended == 0
    assert workload.num_discarded == 3


def test_each_phase_is_learned_by_the_bytes_that_it_moves() -> None:
    costs = CostModel()
    held = {Part.KV_CACHE: 8_000_000_000, Part.WEIGHTS: 2_000_000_000}
    costs.learn(ev.PartsReported(time_s=0.0, held=held))
    draw = random.Random(6)
    for swap in range(20):
        mode = SleepMode.LEVEL_2 if swap % 2 else SleepMode.KV
        size = 10e9 if mode is SleepMode.LEVEL_2 else 8e9
        plan = act.AdoptPlan(
            mode=mode,
            offload=(),
            offload_after_push=(),
            training_bytes=None,
            rollout_bytes=None,
            total_bytes=None,
        )
        took_s = size / 4e9 * draw.uniform(0.98, 1.02)
        line = act.CloseSwap(
            swap=swap,
            version=Version(swap),
            mode=mode,
            offloaded=(),
            awake_bytes=None,
            asleep_bytes=None,
            engine_released_bytes=None,
            peak_bytes=None,
            phase_s={Phase.SLEEPING: took_s},
        )
        costs.leave_rollout(1.0)
        costs.follow([plan], float(swap))
        costs.follow([line], float(swap) + 0.5)
    costs.follow([plan], 100.0)
    assert costs.predict_swap().phase_s[Phase.SLEEPING].value == pytest.approx(2.5, rel=0.05)


def test_a_median_needs_no_order() -> None:
    assert median([3.0, 1.0, 2.0]) == 2.0
    assert median([4.0, 1.0, 2.0, 3.0]) == 2.5
