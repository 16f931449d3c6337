"""A world fitted to a run: its parameters come back, and it runs as long as the run did."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import math
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from colocate.config import (
    DistributionConfig,
    RunConfig,
    SimConfig,
    SimEngineConfig,
    SimEnvironmentConfig,
    SimEpisodeConfig,
    SimTrainerConfig,
)
from colocate.core.settings import Settings
from colocate.journal import read_journal
from colocate.schema import examine
from colocate.sim.clock import run_virtual
from colocate.sim.cluster import Cluster
from colocate.sim.fit import UnfitRunError, _Story, fit_run, least_squares
from colocate.sim.record import SimRecorder
from colocate.sim.run import SimSettings, Simulation
from colocate.sim.world import World
from tests.config.trees import with_values
from tests.sim.test_resumed_runs import live, newest

SETTINGS = Settings(
    steps=25,
    group_size=8,
    groups_per_step=6,
    max_staleness=2,
    idle_timeout_s=1e9,
    verify_every=0,
)
TRUTH = SimConfig(
    engine=SimEngineConfig(pass_s=0.03, sequence_s=6e-4, prefill_token_s=4e-5, request_s=0.05),
    trainer=SimTrainerConfig(step_s=1.5, token_s=4e-4),
    environment=SimEnvironmentConfig(
        reset=DistributionConfig(scale=0.2),
        step=DistributionConfig(kind="lognormal", scale=1.0, shape=1.2),
    ),
    episode=SimEpisodeConfig(
        turn_tokens=DistributionConfig(kind="lognormal", scale=60, shape=0.8),
        turns=DistributionConfig(kind="exponential", scale=3),
    ),
)


def config_of(**limits: int) -> RunConfig:
    values: dict[str, Any] = {
        "rollout.max_new_tokens": limits.get("max_new_tokens", 1024),
        "rollout.max_turns": limits.get("max_turns", 8),
        "inference.max_model_len": limits.get("max_model_len", 8192),
        "seed": 7,
    }
    config = examine(with_values(values)).config
    assert config is not None
    return config


def leave_summary(run_dir: Path, scheduler: Any, wall_s: float) -> dict[str, Any]:
    summary = {"wall_s": wall_s, **scheduler.summary()}
    (run_dir / "summary.json").write_text(json.dumps(summary))
    return summary


def compare(run_dir: Path, config: RunConfig, settings: Settings, real: dict[str, Any]) -> None:
    fitted = fit_run(run_dir, config)
    cluster = Cluster(settings, fitted.world, scripts=fitted.scripts)
    assert cluster.run().status == "completed"
    simulated = cluster.scheduler.summary()
    assert cluster.now_s + fitted.world.outside_s == pytest.approx(real["wall_s"], rel=0.1)
    assert simulated["swaps"] == real["swaps"]
    mean_lag, real_lag = (s["staleness"]["mean_trained_lag"] for s in (simulated, real))
    assert mean_lag == pytest.approx(real_lag, abs=0.2)
    share, real_share = (
        s["environment"]["hidden_s"] / s["environment"]["busy_s"] for s in (simulated, real)
    )
    assert share == pytest.approx(real_share, abs=0.1)


def test_parameters_come_back_from_a_journal_that_they_made(tmp_path: Path) -> None:
    recorder = SimRecorder(tmp_path, trace_fraction=1.0)
    cluster = Cluster(SETTINGS, World(sim=TRUTH), watchers=[recorder])
    cluster.run()
    recorder.close()
    real = leave_summary(tmp_path, cluster.scheduler, cluster.now_s + 12.0)
    fitted = fit_run(tmp_path, config_of()).world
    engine, truth = fitted.sim.engine, TRUTH.engine
    # A pass at the load that was there; its two parts cannot be told apart as well as their sum.
    load = 50
    assert engine.pass_s + load * engine.sequence_s == pytest.approx(
        truth.pass_s + load * truth.sequence_s, rel=0.05
    )
    assert fitted.sim.trainer.step_s == pytest.approx(1.5, rel=0.01)
    assert fitted.sim.trainer.token_s == pytest.approx(4e-4, rel=0.01)
    for name in ("park_s", "sleep_s", "load_s", "offload_s", "publish_s", "wake_kv_s"):
        assert getattr(fitted.sim.swap, name) == pytest.approx(getattr(TRUTH.swap, name), abs=1e-5)
    assert fitted.sim.swap.checkpoint_s == pytest.approx(TRUTH.swap.checkpoint_s, abs=1e-5)
    assert fitted.outside_s == pytest.approx(12.0, abs=1e-3)
    latencies = np.array(fitted.sim.environment.step.values)
    assert np.median(latencies) == pytest.approx(1.0, rel=0.1)
    assert np.std(np.log(latencies)) == pytest.approx(1.2, rel=0.1)
    compare(tmp_path, config_of(), SETTINGS, real)


def test_latencies_of_steps_that_the_bound_cut_short_are_not_left_out(tmp_path: Path) -> None:
    tail = DistributionConfig(kind="lognormal", scale=1.0, shape=1.8)
    sim = TRUTH.model_copy(update={"environment": SimEnvironmentConfig(step=tail)})
    settings = dataclasses.replace(SETTINGS, max_staleness=1, steps=60)
    recorder = SimRecorder(tmp_path, trace_fraction=1.0)
    cluster = Cluster(settings, World(sim=sim), watchers=[recorder])
    cluster.run()
    recorder.close()
    summary = leave_summary(tmp_path, cluster.scheduler, cluster.now_s)
    assert summary["trajectories"]["expired"] > 0
    latencies = np.array(fit_run(tmp_path, config_of()).world.sim.environment.step.values)
    beyond = 1 - NormalDist().cdf(math.log(60.0) / 1.8)
    assert np.mean(latencies > 60.0) == pytest.approx(beyond, rel=0.2)


def test_a_run_of_the_real_driver_is_predicted_from_its_journal(tmp_path: Path) -> None:
    """The driver, its tasks, contents and gate, over simulated ports: another model than ours."""
    settings = dataclasses.replace(SETTINGS, steps=12)

    async def main() -> tuple[Simulation, float]:
        simulation = Simulation(settings, SimSettings(), tmp_path / "events.jsonl")
        await simulation.run()
        return simulation, asyncio.get_running_loop().time()

    simulation, wall_s = run_virtual(main())
    real = leave_summary(tmp_path, simulation.scheduler, wall_s)
    config = config_of(max_new_tokens=32, max_turns=8, max_model_len=512)
    compare(tmp_path, config, settings, real)


def test_what_a_run_took_up_of_an_earlier_life_is_read_over_and_fits_nothing(
    tmp_path: Path,
) -> None:
    live(tmp_path / "a", stop_at_s=27.0)
    state = newest(tmp_path / "a")
    live(tmp_path / "b", origin=state)
    story = _Story()
    for entry in read_journal(tmp_path / "b" / "events.jsonl"):
        story.see(entry.event, entry.actions)
    assert state.buffer is not None
    assert story.scripts()
    assert not story.lives.keys() & {r.id for r in state.buffer.residents.trajectories}


def test_a_run_with_too_little_in_it_is_refused_in_words(tmp_path: Path) -> None:
    recorder = SimRecorder(tmp_path, trace_fraction=1.0)
    cluster = Cluster(SETTINGS, World(), watchers=[recorder])
    cluster.run(stop_at_s=31.0)
    recorder.close()
    leave_summary(tmp_path, cluster.scheduler, 31.0)
    with pytest.raises(UnfitRunError, match="too short to fit"):
        fit_run(tmp_path, config_of())


def test_least_squares_never_gives_a_negative_coefficient() -> None:
    x = np.arange(10.0)
    assert least_squares([np.ones(10), x], 3 + 2 * x) == pytest.approx([3, 2])
    # The best without the rule would have a slope of -2.
    assert least_squares([np.ones(10), x], 30 - 2 * x) == pytest.approx([21, 0])
