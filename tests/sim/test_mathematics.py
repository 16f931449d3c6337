"""What the simulator says against what can be written down on paper."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import pytest

from colocate.config import (
    DistributionConfig,
    SimConfig,
    SimEngineConfig,
    SimEnvironmentConfig,
    SimEpisodeConfig,
    SimSwapConfig,
    SimTrainerConfig,
)
from colocate.core.actions import Action, AdoptPlan
from colocate.core.events import Event, RequestEnded
from colocate.core.phases import Phase
from colocate.core.scheduler import Scheduler
from colocate.core.settings import Settings
from colocate.sim.cluster import Cluster
from colocate.sim.world import World

PASS_S = 0.05


def constant(scale: float) -> DistributionConfig:
    return DistributionConfig(scale=scale)


def world_of(
    turn_tokens: DistributionConfig,
    *,
    engine: SimEngineConfig | None = None,
    latency: DistributionConfig | None = None,
    max_num_seqs: int = 256,
    num_ranks: int = 1,
) -> World:
    """One turn a trajectory; passes that cost the same whatever they decode, unless said."""
    return World(
        sim=SimConfig(
            engine=engine or SimEngineConfig(pass_s=PASS_S, sequence_s=0.0, prefill_token_s=0.0),
            trainer=SimTrainerConfig(step_s=2.0, token_s=1e-3),
            swap=SimSwapConfig(verify_s=0.0),
            environment=SimEnvironmentConfig(step=latency or constant(0.0)),
            episode=SimEpisodeConfig(turn_tokens=turn_tokens, turns=constant(1)),
        ),
        max_num_seqs=max_num_seqs,
        max_new_tokens=8192,
        max_model_len=16384,
        num_ranks=num_ranks,
    )


DRAIN = Settings(
    steps=6,
    group_size=4,
    groups_per_step=4,
    max_staleness=0,
    policy="drain",
    training_timeout_s=1e9,
    phase_timeout_s=1e9,
    idle_timeout_s=1e9,
)
N = DRAIN.trajectories_per_step


@dataclasses.dataclass
class Rollouts:
    """The length of each rollout phase, and the tokens of the requests that ended in it."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    tokens: list[list[int]] = dataclasses.field(default_factory=list)
    _since_s: float = 0.0
    _phase: Phase = Phase.STARTING
    _tokens: list[int] = dataclasses.field(default_factory=list)

    def on_event(self, event: Event, actions: Sequence[Action], scheduler: Scheduler) -> None:
        if isinstance(event, RequestEnded):
            self._tokens.append(sum(span.length for span in event.spans))
        if scheduler.phase is not self._phase:
            if self._phase is Phase.ROLLOUT:
                self.seconds.append(event.time_s - self._since_s)
                self.tokens.append(self._tokens)
                self._tokens = []
            self._phase, self._since_s = scheduler.phase, event.time_s


@pytest.mark.parametrize("slots", [3, 5, 16])
def test_the_makespan_of_a_synchronous_step_is_within_grahams_bound(slots: int) -> None:
    """List scheduling of jobs p on m machines: max(sum p / m, max p) <= makespan <= sum p / m +
    (1 - 1 / m) max p (Graham, *Bounds for Certain Multiprocessing Anomalies*, 1966). Sequences are
    the jobs, the engine's slots the machines: its passes cost the same however many run."""
    lengths = DistributionConfig(kind="lognormal", scale=60, shape=1.2, cap=2000)
    rollouts = Rollouts()
    Cluster(DRAIN, world_of(lengths, max_num_seqs=slots), watchers=[rollouts]).run()
    assert len(rollouts.seconds) == DRAIN.steps
    for seconds, tokens in zip(rollouts.seconds, rollouts.tokens, strict=True):
        jobs_s = [PASS_S * n for n in tokens]
        assert len(jobs_s) == N
        mean_s, longest_s = math.fsum(jobs_s) / slots, max(jobs_s)
        assert seconds >= max(mean_s, longest_s) - 1e-3
        assert seconds <= mean_s + (1 - 1 / slots) * longest_s + 1e-3


@pytest.mark.parametrize("slots", [3, 8, 16])
def test_equal_jobs_take_their_waves(slots: int) -> None:
    rollouts = Rollouts()
    Cluster(DRAIN, world_of(constant(40), max_num_seqs=slots), watchers=[rollouts]).run()
    expected = math.ceil(N / slots) * 40 * PASS_S
    assert rollouts.seconds == pytest.approx([expected] * DRAIN.steps, abs=1e-3)


def test_a_straggling_environment_holds_a_synchronous_step_by_its_own_latency() -> None:
    rollouts = Rollouts()
    world = world_of(constant(40), latency=constant(7.0))
    Cluster(DRAIN, world, watchers=[rollouts]).run()
    assert rollouts.seconds == pytest.approx([40 * PASS_S + 7.0] * DRAIN.steps, abs=1e-3)


def test_the_cycle_divides_into_rollout_training_and_the_swap() -> None:
    """Utilisation = (rollout + training) / cycle, each known in closed form."""
    cluster = Cluster(DRAIN, world_of(constant(40), num_ranks=4))
    cluster.run()
    swap = cluster.world.sim.swap
    rollout_s = 40 * PASS_S
    training_s = 2.0 + 1e-3 * N * 40 / 4
    # Nothing has a size here, so that bandwidths take no time.
    overhead_s = swap.park_s + swap.sleep_s + swap.load_s + swap.offload_s
    overhead_s += swap.wake_weights_s + swap.publish_s + swap.wake_kv_s
    cycle_s = rollout_s + training_s + overhead_s
    phase_s = cluster.scheduler.summary()["phase_s"]
    cycles_s = sum(phase_s.values()) - phase_s["starting"] - phase_s["closing"]
    # The last swap writes the checkpoint.
    assert cycles_s == pytest.approx(DRAIN.steps * cycle_s + swap.checkpoint_s, abs=1e-3)
    useful = (phase_s["rollout"] + phase_s["training"]) / (cycles_s - swap.checkpoint_s)
    assert useful == pytest.approx((rollout_s + training_s) / cycle_s, abs=1e-4)


@dataclasses.dataclass
class Crossings:
    """Trajectories that were being generated at each swap, and those that were finished."""

    crossed: int = 0
    finished: int = 0

    def on_event(self, event: Event, actions: Sequence[Action], scheduler: Scheduler) -> None:
        self.finished += isinstance(event, RequestEnded) and event.finish_reason != "abort"
        if any(isinstance(action, AdoptPlan) for action in actions):
            self.crossed += sum(t.is_unfinished and bool(t.spans) for t in scheduler.buffer)


@pytest.mark.parametrize("inflight", [12, 24, 48])
def test_crossings_of_a_trajectory_are_its_length_over_the_swap_period(inflight: int) -> None:
    """For a random phase: a trajectory that takes D of rollout crosses D / T swaps, where T is the
    rollout between two swaps. Both are of rollout alone, since nothing is generated otherwise."""
    settings = Settings(
        steps=150,
        group_size=2,
        groups_per_step=6,
        max_staleness=9,
        max_inflight=inflight,
        verify_every=0,
        idle_timeout_s=1e9,
    )
    lengths = DistributionConfig(kind="exponential", scale=120)
    crossings = Crossings()
    cluster = Cluster(settings, world_of(lengths), watchers=[crossings])
    assert cluster.run().status == "completed"
    summary = cluster.scheduler.summary()
    period_s = summary["phase_s"]["rollout"] / summary["swaps"]
    mean_length_s = PASS_S * summary["tokens"]["generated"] / crossings.finished
    measured = crossings.crossed / crossings.finished
    assert measured == pytest.approx(mean_length_s / period_s, rel=0.1)


def test_fewer_requests_than_the_formula_starve_the_engine() -> None:
    """``max(1, S) x n``. The engine is nearly saturated by it: a pass over b sequences costs
    ``0.02 + 0.08 b / n``, so that its rates at n / 4 and n are as 100 : 160."""
    engine = SimEngineConfig(pass_s=0.02, sequence_s=0.08 / N, prefill_token_s=1e-5)
    lengths = DistributionConfig(kind="lognormal", scale=200, shape=0.8, cap=3000)
    base = dataclasses.replace(DRAIN, policy="interval", max_staleness=1, steps=20)
    assert base.max_requests == N

    def rollout_s(inflight: int) -> float:
        settings = dataclasses.replace(base, max_inflight=inflight)
        cluster = Cluster(settings, world_of(lengths, engine=engine))
        assert cluster.run().status == "completed"
        return float(cluster.scheduler.summary()["phase_s"]["rollout"])

    assert rollout_s(N // 4) > 1.25 * rollout_s(N)
