"""Each phase of the swap, broken in each way: it fails closed, with its cause, losing nothing."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colocate.core import actions as act
from colocate.core.phases import Phase
from colocate.core.types import MemorySample, Version
from colocate.journal import read_journal
from colocate.ports import Publication, StepReport, TrainingBatch
from colocate.replay import replay
from colocate.sim.run import SimSettings, Simulation
from tests.faults import Breakage, after, break_call, fails, fails_half_way, hangs, lies
from tests.sim.test_simulated_runs import BASE, simulate

SETTINGS = dataclasses.replace(BASE, steps=8, verify_every=1, sleep="2")

CALLS = {
    Phase.STARTING: [("inference", "start"), ("trainer", "start")],
    Phase.PARKING: [("inference", "park")],
    Phase.SLEEPING: [("inference", "sleep")],
    Phase.TRAINER_WAKING: [("trainer", "load")],
    Phase.TRAINING: [("trainer", "train")],
    Phase.TRAINER_OFFLOADING: [("trainer", "offload"), ("transfer", "expect")],
    Phase.WEIGHTS_WAKING: [("inference", "wake")],
    Phase.PUBLISHING: [("transfer", "publish")],
    Phase.KV_WAKING: [("inference", "wake"), ("transfer", "verify")],
}
"""Every call that the driver makes of a port on the way through a swap."""

EVERY_CALL = [(phase, *call) for phase, calls in CALLS.items() for call in calls]


def port_of(simulation: Simulation, name: str) -> Any:
    return simulation.ports.transfer if name == "transfer" else getattr(simulation, name)


def in_the_second_swap(phase: Phase) -> Callable[..., bool]:
    """The first goes well, so that there is something to lose."""
    if phase is Phase.STARTING:
        return after(0)
    if phase in (Phase.WEIGHTS_WAKING, Phase.KV_WAKING):
        tag = "weights" if phase is Phase.WEIGHTS_WAKING else "kv_cache"
        calls = after(1)
        return lambda *args: (not args or args[0] == tag) and calls()
    # The trainer is offloaded once before the first swap.
    return after(2 if phase is Phase.TRAINER_OFFLOADING else 1)


def run_broken(
    run_dir: Path, phase: Phase, port: str, method: str, breakage: Breakage, **changes: Any
) -> tuple[Simulation, Any]:
    def prepare(simulation: Simulation) -> None:
        when = in_the_second_swap(phase)
        if method == "expect":
            when = after(1)
        break_call(port_of(simulation, port), method, breakage, when=when)

    settings = dataclasses.replace(SETTINGS, **changes)
    simulation, outcome = simulate(run_dir, settings, prepare=prepare)
    assert not any(environment.is_open for environment in simulation.environments)
    assert replay(run_dir).violations == []
    return simulation, outcome


def phase_at_the_end(run_dir: Path) -> Phase | None:
    """Which phase the run was in when it failed."""
    phases = [
        action
        for entry in read_journal(run_dir / "events.jsonl")
        for action in entry.actions
        if isinstance(action, act.PhaseAction | act.Train)
    ]
    kinds = {
        act.StartPorts: Phase.STARTING,
        act.Park: Phase.PARKING,
        act.Sleep: Phase.SLEEPING,
        act.LoadTrainer: Phase.TRAINER_WAKING,
        act.Train: Phase.TRAINING,
        act.OffloadTrainer: Phase.TRAINER_OFFLOADING,
        act.WakeWeights: Phase.WEIGHTS_WAKING,
        act.Publish: Phase.PUBLISHING,
        act.WakeKv: Phase.KV_WAKING,
    }
    before_the_close = [a for a in phases if not isinstance(a, act.CloseRun)]
    return kinds.get(type(before_the_close[-1]))


@pytest.mark.parametrize(("phase", "port", "method"), EVERY_CALL)
@pytest.mark.parametrize("breakage", [fails, fails_half_way])
def test_a_call_that_fails_ends_the_run_in_its_phase_with_its_error(
    tmp_path: Path, phase: Phase, port: str, method: str, breakage: Breakage
) -> None:
    simulation, outcome = run_broken(tmp_path, phase, port, method, breakage)
    assert outcome.status == "failed"
    assert outcome.error == "OSError: broken on purpose"
    assert phase_at_the_end(tmp_path) is phase
    # A trainer that cannot be loaded cannot be saved, and one that was at work must not be.
    savable = phase not in (Phase.STARTING, Phase.TRAINER_WAKING, Phase.TRAINING)
    assert bool(simulation.checkpoints.saved) is savable


@pytest.mark.parametrize(("phase", "port", "method"), EVERY_CALL)
def test_a_call_that_hangs_ends_the_run_at_the_deadline_of_its_phase(
    tmp_path: Path, phase: Phase, port: str, method: str
) -> None:
    _, outcome = run_broken(tmp_path, phase, port, method, hangs)
    assert outcome.status == "failed"
    assert f"{phase} has not ended by its deadline" in outcome.error
    assert phase_at_the_end(tmp_path) is phase


def one_version_on(batch: TrainingBatch) -> StepReport:
    num_tokens = sum(sum(sample.loss_mask) for sample in batch.samples)
    metrics = {"num_tokens": float(num_tokens), "reward_mean": 0.0}
    return StepReport(batch=batch.batch, version=Version(batch.version + 1), metrics=metrics)


def published(version: Version) -> Publication:
    return Publication(version=version, num_tensors=1, num_bytes=1)


@pytest.mark.parametrize(
    ("phase", "port", "method", "answer", "said"),
    [
        (Phase.STARTING, "inference", "start", None, "an engine that is not there"),
        (Phase.SLEEPING, "inference", "sleep", None, "give up kv_cache"),
        (Phase.TRAINER_WAKING, "trainer", "load", None, "of the optimizer are back"),
        (Phase.TRAINING, "trainer", "train", one_version_on, "the engine reports version 1"),
        (Phase.TRAINER_OFFLOADING, "trainer", "offload", None, "so that the engine can wake"),
        (Phase.WEIGHTS_WAKING, "inference", "wake", None, "whose weights are awake"),
        (Phase.PUBLISHING, "transfer", "publish", published, "the engine answers with version 1"),
        (Phase.KV_WAKING, "inference", "wake", None, "of the kv_cache are back"),
    ],
)
def test_a_call_that_lies_is_found_out_by_what_is_measured_or_asked_afterwards(
    tmp_path: Path, phase: Phase, port: str, method: str, answer: Any, said: str
) -> None:
    _, outcome = run_broken(tmp_path, phase, port, method, lies(answer))
    assert outcome.status == "failed"
    assert said in outcome.error


@pytest.mark.parametrize("phase", [Phase.SLEEPING, Phase.TRAINER_OFFLOADING])
def test_memory_that_does_not_fall_is_fought_by_the_ladder_and_then_ends_the_run(
    tmp_path: Path, phase: Phase
) -> None:
    """Something stays that neither port reports: a graph, a communicator, a cache."""
    waits_in = act.Sleep if phase is Phase.SLEEPING else act.OffloadTrainer

    def prepare(simulation: Simulation) -> None:
        measure = simulation.ports.measure
        assert measure is not None

        async def with_residual() -> MemorySample:
            sample = await measure()
            if simulation.scheduler.phase is not phase or simulation.scheduler.books.swaps < 1:
                return sample
            tenant = "engine" if phase is Phase.SLEEPING else "trainer"
            stays = 12 * 2**30
            held = {**sample.tenants, tenant: sample.tenants[tenant] + stays}
            return dataclasses.replace(sample, used=sample.used + stays, tenants=held)

        simulation.replace_ports(measure=with_residual)

    settings = dataclasses.replace(SETTINGS, sleep="kv")
    simulation, outcome = simulate(tmp_path, settings, prepare=prepare)
    assert outcome.status == "failed"
    assert f"{phase} has not ended by its deadline" in outcome.error
    entries = list(read_journal(tmp_path / "events.jsonl"))
    remedies = [a.remedy for e in entries for a in e.actions if isinstance(a, act.Relieve)]
    assert remedies[0] == "collect"
    assert any(isinstance(a, waits_in) for e in entries for a in e.actions)
    assert simulation.checkpoints.saved
    assert replay(tmp_path).violations == []


def test_memory_that_falls_two_seconds_after_each_sleep_costs_time_and_no_remedy(
    tmp_path: Path,
) -> None:
    def prepare(simulation: Simulation) -> None:
        measure = simulation.ports.measure
        assert measure is not None
        held_until: dict[int, float] = {}

        async def late() -> MemorySample:
            sample = await measure()
            swap = simulation.scheduler.books.swaps
            if simulation.scheduler.phase is Phase.SLEEPING:
                now_s = simulation.driver.now_s()
                if now_s < held_until.setdefault(swap, now_s + 2.0):
                    awake = simulation.scheduler.swapper.ledger.awake
                    assert awake is not None
                    return awake
            return sample

        simulation.replace_ports(measure=late)

    simulation, outcome = simulate(tmp_path, SETTINGS, prepare=prepare)
    assert outcome.status == "completed"
    summary = simulation.scheduler.summary()
    assert summary["phase_s"]["sleeping"] >= 2.0 * summary["swaps"]
    entries = list(read_journal(tmp_path / "events.jsonl"))
    assert not [a for e in entries for a in e.actions if isinstance(a, act.Relieve)]
    assert replay(tmp_path).violations == []


@pytest.mark.parametrize("breakage", [fails, hangs])
@pytest.mark.parametrize("what", ["measure", "residency"])
def test_a_probe_or_a_report_that_breaks_ends_the_run(
    tmp_path: Path, what: str, breakage: Breakage
) -> None:
    def prepare(simulation: Simulation) -> None:
        if what == "residency":
            break_call(simulation.inference, "residency", breakage, when=after(6))
            return
        measure = simulation.ports.measure
        when = after(40)

        async def broken() -> MemorySample:
            assert measure is not None
            return await (breakage(measure) if when() else measure())

        simulation.replace_ports(measure=broken)

    _, outcome = simulate(tmp_path, SETTINGS, prepare=prepare)
    assert outcome.status == "failed"
    assert ("deadline" if breakage is hangs else "broken on purpose") in outcome.error
    assert replay(tmp_path).violations == []


def test_a_device_that_holds_little_is_shared_by_deeper_evictions(tmp_path: Path) -> None:
    """From a device that holds all to one that holds each alone, the same run completes."""
    modes = {}
    for gib in (40, 17, 12):
        run_dir = tmp_path / str(gib)
        run_dir.mkdir()
        settings = dataclasses.replace(BASE, steps=6)
        simulation, outcome = simulate(run_dir, settings, SimSettings(device_bytes=gib * 2**30))
        assert outcome.status == "completed", outcome.error
        assert replay(run_dir).violations == []
        plans = [
            a
            for e in read_journal(run_dir / "events.jsonl")
            for a in e.actions
            if isinstance(a, act.AdoptPlan)
        ]
        modes[gib] = plans[-1].mode
        assert simulation.scheduler.summary()["memory"]["peak"] <= gib * 2**30
    assert modes == {40: "0", 17: "kv", 12: "kv"}
