"""Runs with more environments than needed: the first to finish win, the rest are cancelled."""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from colocate.core import actions as act
from colocate.core.redundancy import REASON
from colocate.core.settings import Settings
from colocate.core.types import Ending
from colocate.journal import read_journal
from colocate.ports import Generation, GenerationRequest
from colocate.replay import replay
from colocate.sim.ports import SimEnvironmentSettings
from colocate.sim.run import SimSettings, Simulation
from tests.sim.test_simulated_runs import simulate

BASE = Settings(steps=6, group_size=4, groups_per_step=3, max_staleness=1)
SLOW_TAIL = SimSettings(environment=SimEnvironmentSettings(latency_s=1.0, tail=1.2))


@pytest.mark.parametrize("policy", ["interval", "timed", "drain"])
@pytest.mark.parametrize("spare_groups", ["cancel", "carry"])
@pytest.mark.parametrize(("per_group", "groups"), [(2, 0), (0, 2), (1, 1)])
def test_a_run_trains_whole_groups_closes_the_losers_and_replays(
    tmp_path: Path, policy: Any, spare_groups: Any, per_group: int, groups: int
) -> None:
    settings = dataclasses.replace(
        BASE,
        policy=policy,
        period_s=5.0,
        redundant_per_group=per_group,
        redundant_groups=groups,
        spare_groups=spare_groups,
    )
    simulation, outcome = simulate(tmp_path, settings, SLOW_TAIL)
    assert outcome.status == "completed", outcome.error
    for batch in simulation.trainer.trained:
        sizes = Counter(sample.group for sample in batch.samples)
        assert list(sizes.values()) == [4, 4, 4]
    assert not any(e.is_open for e in simulation.environments)
    summary = simulation.scheduler.summary()
    report = summary["redundancy"]
    assert report["cancelled"] == summary["trajectories"]["cancelled"]
    assert report["cancelled"] == summary["reasons"].get(f"cancelled: {REASON}", 0)
    if per_group:
        assert report["cancelled"] > 0
        assert report["mean_tokens_trained"] > 0
    assert replay(tmp_path).violations == []


def test_the_tail_is_no_longer_waited_for_where_everything_is_drained(tmp_path: Path) -> None:
    drain = dataclasses.replace(BASE, policy="drain", max_staleness=0)
    waits = {}
    for name, spares in {"none": {}, "members": {"redundant_per_group": 2}}.items():
        folder = tmp_path / name
        folder.mkdir()
        settings = dataclasses.replace(drain, **spares)
        simulation, _ = simulate(folder, settings, SLOW_TAIL)
        waits[name] = simulation.scheduler.summary()["phase_s"]["rollout"]
    assert waits["members"] < 0.6 * waits["none"]


def test_a_drain_leaves_as_many_groups_unfinished_as_are_spare(tmp_path: Path) -> None:
    settings = dataclasses.replace(BASE, policy="drain", max_staleness=0, redundant_groups=2)
    simulation, outcome = simulate(tmp_path, settings, SLOW_TAIL)
    assert outcome.status == "completed"
    summary = simulation.scheduler.summary()
    assert summary["trajectories"]["cancelled"] > 0
    assert summary["tokens"]["carried"] == 0


def test_spare_groups_are_carried_only_where_that_was_asked_for(tmp_path: Path) -> None:
    carried = {}
    for choice in ("cancel", "carry"):
        folder = tmp_path / choice
        folder.mkdir()
        settings = dataclasses.replace(
            BASE,
            policy="drain",
            redundant_groups=2,
            spare_groups=choice,  # type: ignore[arg-type]
        )
        simulation, _ = simulate(folder, settings, SLOW_TAIL)
        carried[choice] = simulation.scheduler.summary()["partials"]["carried"]
    assert carried["cancel"] == 0
    assert carried["carry"] > 0


def test_what_a_loser_has_at_the_engine_is_aborted_at_once(tmp_path: Path) -> None:
    """A long turn of one member, short ones of its siblings: the group does not wait for it."""
    aborted: list[str] = []

    def prepare(simulation: Simulation) -> None:
        generate = simulation.inference.generate

        async def watched(request: GenerationRequest) -> Generation:
            try:
                return await generate(request)
            except asyncio.CancelledError:
                aborted.append(request.request_id)
                raise

        simulation.inference.generate = watched  # type: ignore[method-assign]

    settings = dataclasses.replace(BASE, redundant_per_group=2)
    simulation, outcome = simulate(tmp_path, settings, prepare=prepare)
    assert outcome.status == "completed"
    requests, cancelled = {}, set()
    for entry in read_journal(tmp_path / "events.jsonl"):
        for action in entry.actions:
            if isinstance(action, act.SubmitRequest):
                requests[action.request] = action.trajectory
            elif isinstance(action, act.EndTrajectory) and action.ending is Ending.CANCELLED:
                cancelled.add(action.trajectory)
    assert aborted
    losers = {requests[request] for request in aborted}
    assert losers & cancelled
    assert simulation.inference._running == 0
