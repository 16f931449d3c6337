"""Whole simulated runs in which many groups have equal rewards: replay and dynamic sampling."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.settings import Settings
from colocate.journal import read_journal
from colocate.replay import replay
from colocate.rollout.floor import Floor
from colocate.sim.ports import SimEnvironmentSettings
from colocate.sim.run import SimSettings, Simulation
from tests.sim.test_simulated_runs import BASE, reseal, simulate

WORLD = SimSettings(environment=SimEnvironmentSettings(flat_probability=0.5))
REPLAYING = dataclasses.replace(
    BASE,
    steps=8,
    replay_groups=2,
    replay_min_std=0.05,
    replay_min_mean=0.3,
    replay_max_staleness=4,
    replay_max_uses=2,
)
RESAMPLING = dataclasses.replace(BASE, steps=6, dynamic_sampling=True)


def rewards_of(batch: Any) -> dict[int, set[float]]:
    by_group: dict[int, set[float]] = {}
    for sample in batch.samples:
        by_group.setdefault(sample.group, set()).add(sample.reward)
    return by_group


@pytest.mark.parametrize("policy", ["interval", "drain"])
@pytest.mark.parametrize("max_staleness", [0, 2])
def test_flat_groups_are_replaced_by_what_was_trained_before_bit_for_bit(
    tmp_path: Path, policy: str, max_staleness: int
) -> None:
    settings = dataclasses.replace(
        REPLAYING,
        policy=policy,  # type: ignore[arg-type]
        max_staleness=max_staleness,
        swap_interval=max(1, max_staleness),
    )
    simulation, outcome = simulate(tmp_path, settings, WORLD)
    assert outcome.status == "completed"
    first: dict[int, Any] = {}
    num_replayed = 0
    for batch in simulation.trainer.trained:
        assert len(rewards_of(batch)) == settings.groups_per_step
        for sample in batch.samples:
            if sample.origin is None:
                assert sample.trajectory not in first
                first[sample.trajectory] = (batch.batch, sample)
                continue
            num_replayed += 1
            origin, original = first[sample.trajectory]
            assert sample == dataclasses.replace(original, origin=origin)
            versions = [
                v for v, bears in zip(sample.versions, sample.loss_mask, strict=True) if bears
            ]
            assert 0 < batch.version - min(versions) <= settings.replay_max_staleness
    summary = simulation.scheduler.summary()
    assert summary["trajectories"]["replayed"] == num_replayed > 0
    assert summary["trajectories"]["filtered"] > 0
    assert summary["staleness"]["max_trained_lag"] <= max_staleness
    assert 0 < summary["replay"]["mean_lag"] <= summary["replay"]["max_lag"] <= 4
    assert replay(tmp_path).violations == []


def test_contents_that_are_kept_for_replay_are_bounded(tmp_path: Path) -> None:
    class Watch:
        """An observer that counts contents of trajectories that have ended."""

        most = 0

        def on_step(self, batch: Any, report: Any, floor: Floor) -> None:
            resident = {t.id for t in simulation.scheduler.buffer}
            kept = [t for t in floor.contents._contents if t not in resident]
            self.most = max(self.most, len(kept))

        def on_progress(self, *_: Any) -> None: ...
        def on_event(self, *_: Any) -> None: ...
        def on_memory(self, *_: Any) -> None: ...
        def on_telemetry(self, *_: Any) -> None: ...

    watch = Watch()

    def prepare(made: Simulation) -> None:
        nonlocal simulation
        simulation = made
        made._observers = [watch]
        made.driver = made._make_driver()

    simulation: Any = None
    simulate(tmp_path, dataclasses.replace(REPLAYING, steps=20), WORLD, prepare)
    assert 0 < watch.most <= REPLAYING.replay_groups * REPLAYING.group_size


def test_with_dynamic_sampling_no_group_that_is_trained_is_flat(tmp_path: Path) -> None:
    simulation, outcome = simulate(tmp_path, RESAMPLING, WORLD)
    assert outcome.status == "completed"
    groups = [r for batch in simulation.trainer.trained for r in rewards_of(batch).values()]
    assert len(groups) == 12
    assert all(len(rewards) > 1 for rewards in groups)
    counts = simulation.scheduler.summary()["trajectories"]
    assert counts["filtered"] > 0
    assert counts["replayed"] == 0
    assert replay(tmp_path).violations == []


def test_without_either_flat_groups_are_trained_as_they_are(tmp_path: Path) -> None:
    simulation, _ = simulate(tmp_path, dataclasses.replace(BASE, steps=6), WORLD)
    groups = [r for batch in simulation.trainer.trained for r in rewards_of(batch).values()]
    assert any(len(rewards) == 1 for rewards in groups)
    assert simulation.scheduler.summary()["trajectories"]["filtered"] == 0


@pytest.mark.parametrize("limit", [1, None])
def test_a_run_whose_every_group_is_flat_ends_and_says_so(
    tmp_path: Path, limit: int | None
) -> None:
    world = SimSettings(environment=SimEnvironmentSettings(flat_probability=1.0))
    settings = dataclasses.replace(BASE, dynamic_sampling=True, dynamic_sampling_max_groups=limit)
    simulation, outcome = simulate(tmp_path, settings, world)
    assert outcome.status == "completed"
    summary = simulation.scheduler.summary()
    [warning] = [w for w in summary["warnings"] if "equal rewards" in w]
    assert "algorithm.dynamic_sampling_max_groups" in warning
    assert replay(tmp_path).violations == []


def with_stop(simulation: Simulation) -> None:
    import asyncio

    asyncio.get_running_loop().call_later(20.0, simulation.driver.request_stop, 15)


def test_what_may_be_replayed_outlives_the_process(tmp_path: Path) -> None:
    """With its content, its origin, and how often it was used."""
    settings = dataclasses.replace(REPLAYING, steps=50)
    simulation, _ = simulate(tmp_path, settings, WORLD, with_stop)
    (state,) = simulation.checkpoints.saved.values()
    assert state.buffer is not None
    kept = {kept.group for kept in state.buffer.replays.kept}
    assert kept
    again = tmp_path / "again"
    again.mkdir()

    def resume(made: Simulation) -> None:
        run = made.run
        made.run = lambda: run(state)  # type: ignore[method-assign]

    second, outcome = simulate(
        again, dataclasses.replace(settings, steps=state.version + 8), WORLD, resume
    )
    assert outcome.status == "completed"
    replayed = {
        sample.group
        for batch in second.trainer.trained
        for sample in batch.samples
        if sample.origin is not None
    }
    assert replayed & kept
    assert replay(again).violations == []


def test_a_run_without_replay_forgets_what_the_checkpoint_kept_for_it(tmp_path: Path) -> None:
    simulation, _ = simulate(tmp_path, dataclasses.replace(REPLAYING, steps=50), WORLD, with_stop)
    (state,) = simulation.checkpoints.saved.values()
    again = tmp_path / "again"
    again.mkdir()

    def resume(made: Simulation) -> None:
        run = made.run
        made.run = lambda: run(state)  # type: ignore[method-assign]

    settings = dataclasses.replace(BASE, steps=state.version + 2)
    second, outcome = simulate(again, settings, WORLD, resume)
    assert outcome.status == "completed"
    assert second.scheduler.summary()["trajectories"]["replayed"] == 0
    assert replay(again).violations == []


# What colocate replay finds where a scheduler had done wrong


def the_replaying(entries: list[Any]) -> list[Any]:
    """Lines of the journal with an action that replays."""
    return [
        entry for entry in entries if any(isinstance(a, act.Train) and a.replays for a in entry[1])
    ]


def change_actions(entry: list[Any], kind: type, change: Callable[[Any], dict[str, Any]]) -> None:
    entry[1] = [dataclasses.replace(a, **change(a)) if isinstance(a, kind) else a for a in entry[1]]


def name_another_origin(entries: list[Any]) -> None:
    for entry in the_replaying(entries)[:1]:
        change_actions(
            entry,
            act.Train,
            lambda a: {"replays": (dataclasses.replace(a.replays[0], origin=a.batch),)},
        )


def use_a_lease_again(entries: list[Any]) -> None:
    """The second use goes under the first one's number."""
    for entry in the_replaying(entries)[1:2]:
        change_actions(
            entry,
            act.Train,
            lambda a: {"replays": (dataclasses.replace(a.replays[0], replay=0),)},
        )


def forget_before_the_replay(entries: list[Any]) -> None:
    entry = the_replaying(entries)[0]
    [train] = [a for a in entry[1] if isinstance(a, act.Train)]
    forget = act.ForgetContent(
        group=train.replays[0].group, trajectories=train.replays[0].trajectories, reason="too soon"
    )
    entry[1] = [forget, *entry[1]]


def train_other_content(entries: list[Any]) -> None:
    entry = the_replaying(entries)[0]
    [train] = [a for a in entry[1] if isinstance(a, act.Train)]
    for later in entries:
        if isinstance(later[0], ev.BatchTrained) and later[0].batch == train.batch:
            digests = (*later[0].digests[:-1], "0" * 16)
            later[0] = dataclasses.replace(later[0], digests=digests)


@pytest.mark.parametrize(
    ("change", "invariant"),
    [
        (name_another_origin, "exactly once"),
        (use_a_lease_again, "exactly once"),
        (forget_before_the_replay, "fidelity"),
        (train_other_content, "fidelity"),
    ],
)
def test_the_audit_alone_finds_a_replay_that_is_wrong(
    tmp_path: Path, change: Callable[[list[Any]], None], invariant: str
) -> None:
    from colocate.core.audit import Auditor

    settings: Settings = dataclasses.replace(REPLAYING, max_staleness=0)
    simulate(tmp_path, settings, WORLD)
    journal = tmp_path / "events.jsonl"
    reseal(journal, change)
    auditor = Auditor()
    for entry in read_journal(journal):
        auditor.feed(entry.event, entry.actions)
    assert invariant in {violation.invariant for violation in auditor.violations}
    assert replay(tmp_path).violations
