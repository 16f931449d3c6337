"""Whole runs of the scheduler in the simulated cluster: complete, audited, the same each time."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from colocate.config import (
    DistributionConfig,
    SimConfig,
    SimEngineConfig,
    SimEnvironmentConfig,
    SimMemoryConfig,
)
from colocate.core.actions import Action
from colocate.core.audit import Auditor
from colocate.core.events import Event
from colocate.core.scheduler import Scheduler
from colocate.core.settings import Settings
from colocate.sim.cluster import Cluster
from colocate.sim.world import World

BASE = Settings(steps=5, group_size=4, groups_per_step=6, max_staleness=2)
GIB = 2**30


class Audit:
    def __init__(self) -> None:
        self.auditor = Auditor()

    def on_event(self, event: Event, actions: Sequence[Action], scheduler: Scheduler) -> None:
        self.auditor.feed(event, actions)


def simulate(settings: Settings = BASE, world: World | None = None) -> tuple[Cluster, Any]:
    audit = Audit()
    cluster = Cluster(settings, world or World(), watchers=[audit])
    outcome = cluster.run()
    summary = cluster.scheduler.summary()
    audit.auditor.check_summary(summary)
    assert audit.auditor.violations == []
    assert cluster.fleet.engines[0].num_requests == 0 or outcome.status != "completed"
    return cluster, outcome


@pytest.mark.parametrize("policy", ["interval", "timed", "drain"])
@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_a_run_completes_and_keeps_every_invariant(policy: Any, max_staleness: int) -> None:
    settings = dataclasses.replace(
        BASE,
        policy=policy,
        max_staleness=max_staleness,
        period_s=20.0,
        swap_interval=max(1, max_staleness),
    )
    cluster, outcome = simulate(settings)
    assert outcome.status == "completed"
    summary = cluster.scheduler.summary()
    assert summary["trajectories"]["trained"] == 5 * 24
    assert summary["environment"]["busy_s"] > 0


def test_the_same_seed_gives_the_same_run_and_another_seed_another() -> None:
    def story(seed: int) -> tuple[float, int]:
        cluster, _ = simulate(world=World(seed=seed))
        return cluster.now_s, cluster.scheduler.books.tokens["generated"]

    assert story(1) == story(1)
    assert story(1) != story(2)


def test_failing_invalid_and_hanging_environments_are_counted() -> None:
    environment = SimEnvironmentConfig(
        step=DistributionConfig(kind="pareto", scale=1.0, shape=1.2),
        failure_probability=0.05,
        invalid_probability=0.05,
    )
    world = World(sim=SimConfig(environment=environment), step_timeout_s=10.0)
    settings = dataclasses.replace(BASE, max_filtered_fraction=1.0)
    cluster, outcome = simulate(settings, world)
    assert outcome.status == "completed"
    summary = cluster.scheduler.summary()
    assert summary["trajectories"]["masked"] > 0
    assert {reason.split(":")[0] for reason in summary["reasons"]} >= {"filtered", "masked"}
    assert any("step did not answer" in reason for reason in summary["reasons"])


@pytest.mark.parametrize("on_stale", ["expire", "restart"])
def test_what_becomes_too_old_is_expired_or_begins_again(on_stale: Any) -> None:
    tail = DistributionConfig(kind="pareto", scale=0.5, shape=1.1)
    world = World(sim=SimConfig(environment=SimEnvironmentConfig(step=tail)))
    settings = dataclasses.replace(BASE, max_staleness=1, on_stale=on_stale, steps=8)
    cluster, outcome = simulate(settings, world)
    assert outcome.status == "completed"
    summary = cluster.scheduler.summary()
    assert (summary["trajectories"]["expired"] > 0) == (on_stale == "expire")
    assert (summary["restarts"] > 0) == (on_stale == "restart")
    assert summary["staleness"]["max_trained_lag"] <= 1


def test_several_engines_share_the_requests_and_finish_sooner() -> None:
    slow = SimConfig(engine=SimEngineConfig(pass_s=0.02, sequence_s=0.005))
    one, _ = simulate(world=World(sim=slow))
    four, _ = simulate(world=World(sim=slow, num_engines=4))
    assert four.now_s < one.now_s
    busy_s = [engine.busy_s for engine in four.fleet.engines]
    assert min(busy_s) > 0.5 * max(busy_s)


def test_a_small_kv_cache_preempts_and_costs_time() -> None:
    roomy, _ = simulate(world=World(max_model_len=2048))
    tight, outcome = simulate(world=World(max_model_len=2048, kv_tokens=4096))
    assert outcome.status == "completed"
    assert roomy.fleet.num_preemptions == 0
    assert tight.fleet.num_preemptions > 0
    assert tight.scheduler.books.phase_s != roomy.scheduler.books.phase_s


def test_measured_memory_makes_swaps_evict_only_what_does_not_fit() -> None:
    def modes(device_gib: int) -> tuple[float, Any]:
        memory = SimMemoryConfig(
            device_bytes=device_gib * GIB,
            weights_bytes=2 * GIB,
            kv_bytes=8 * GIB,
            parameters_bytes=GIB,
            gradients_bytes=GIB,
            optimizer_bytes=4 * GIB,
            activations_bytes=GIB,
        )
        settings = dataclasses.replace(BASE, steps=12)
        cluster, outcome = simulate(settings, World(sim=SimConfig(memory=memory)))
        assert outcome.status == "completed"
        summary = cluster.scheduler.summary()
        assert summary["memory"]["peak"] <= device_gib * GIB
        return summary["phase_s"]["sleeping"], summary["memory"]

    tight_s, tight = modes(16)
    roomy_s, _ = modes(64)
    assert tight["asleep"] < tight["awake"]
    assert roomy_s < tight_s


def test_a_stop_ends_the_run_in_order() -> None:
    cluster = Cluster(BASE, World())
    outcome = cluster.run(stop_at_s=60.0)
    assert outcome.status == "stopped"
    assert 60.0 <= cluster.now_s < 120.0
