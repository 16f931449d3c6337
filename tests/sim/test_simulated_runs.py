"""Whole runs of the real driver over simulated ports, under a virtual clock."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colocate.core import events as ev
from colocate.core.actions import CloseSwap
from colocate.core.eviction import MIN_PEAKS
from colocate.core.phases import Phase
from colocate.core.settings import Settings
from colocate.core.types import Version
from colocate.journal import JournalError, encode_body, read_journal, seal
from colocate.replay import replay
from colocate.run_state import RunState
from colocate.sim.clock import VirtualDeadlock, run_virtual
from colocate.sim.ports import SimEnvironmentSettings, SimInference, SimTrainer
from colocate.sim.run import SimSettings, Simulation

BASE = Settings(steps=4, group_size=3, groups_per_step=2, max_staleness=2)


def simulate(
    run_dir: Path,
    settings: Settings = BASE,
    world: SimSettings | None = None,
    prepare: Callable[[Simulation], None] = lambda _: None,
) -> tuple[Simulation, Any]:
    async def main() -> tuple[Simulation, Any]:
        simulation = Simulation(settings, world or SimSettings(), run_dir / "events.jsonl")
        prepare(simulation)
        before = asyncio.all_tasks()
        outcome = await simulation.run()
        assert asyncio.all_tasks() == before, "a task was left behind"
        return simulation, outcome

    simulation, outcome = run_virtual(main())
    summary = simulation.scheduler.summary()
    (run_dir / "summary.json").write_text(json.dumps(summary))
    return simulation, outcome


@pytest.mark.parametrize("policy", ["interval", "timed", "drain"])
@pytest.mark.parametrize("max_staleness", [0, 1, 3])
def test_a_run_completes_balances_and_replays(
    tmp_path: Path, policy: str, max_staleness: int
) -> None:
    settings = dataclasses.replace(
        BASE,
        policy=policy,  # type: ignore[arg-type]
        max_staleness=max_staleness,
        period_s=2.0,
        swap_interval=max(1, max_staleness),
    )
    simulation, outcome = simulate(tmp_path, settings)
    assert outcome.status == "completed"
    summary = simulation.scheduler.summary()
    assert summary["trajectories"]["trained"] == 24
    assert summary["staleness"]["max_trained_lag"] <= max_staleness
    assert len(simulation.trainer.trained) == 4
    assert not any(e.is_open for e in simulation.environments)
    found = replay(tmp_path)
    assert found.violations == []
    assert found.num_batches == 4


def test_partials_are_carried_over_swaps_and_environments_run_on_under_them(tmp_path: Path) -> None:
    simulation, _ = simulate(tmp_path)
    summary = simulation.scheduler.summary()
    assert summary["partials"]["carried"] > 0
    assert summary["partials"]["max_spans"] >= 2
    assert 0 < summary["environment"]["hidden_s"] < summary["environment"]["busy_s"]
    assert summary["memory"]["asleep"] < summary["memory"]["awake"]
    assert sum(summary["phase_s"].values()) == pytest.approx(
        simulation.scheduler.swapper.now_s, abs=1e-3
    )


@pytest.mark.parametrize("sleep", ["0", "kv", "1", "2", "auto"])
@pytest.mark.parametrize("device_gib", [16, 64])
def test_every_depth_of_sleep_completes_and_auto_stays_awake_where_both_fit(
    tmp_path: Path, sleep: Any, device_gib: int
) -> None:
    settings = dataclasses.replace(BASE, sleep=sleep)
    world = SimSettings(device_bytes=device_gib * 2**30)
    simulation, outcome = simulate(tmp_path, settings, world)
    assert outcome.status == "completed"
    slept = [
        e.time_s
        for entry in read_journal(tmp_path / "events.jsonl")
        if isinstance(e := entry.event, ev.PhaseEnded) and e.phase is Phase.SLEEPING
    ]
    swaps = simulation.scheduler.summary()["swaps"]
    # What training needs is known after some steps only, so the first swaps sleep.
    expected = {"0": 0, "auto": MIN_PEAKS if device_gib == 64 else swaps}.get(sleep, swaps)
    assert len(slept) == expected


def test_failing_and_invalid_environments_are_counted_and_replaced(tmp_path: Path) -> None:
    world = SimSettings(
        environment=SimEnvironmentSettings(failure_probability=0.05, invalid_probability=0.05)
    )
    settings = dataclasses.replace(BASE, max_filtered_fraction=1.0)
    simulation, outcome = simulate(tmp_path, settings, world)
    counts = simulation.scheduler.summary()["trajectories"]
    assert outcome.status == "completed"
    assert counts["filtered"] > 0
    assert counts["masked"] > 0
    assert replay(tmp_path).violations == []


def test_an_environment_that_hangs_is_filtered_at_its_deadline(tmp_path: Path) -> None:
    world = SimSettings(
        environment=SimEnvironmentSettings(latency_s=2.0, tail=1.1), step_timeout_s=10.0
    )
    settings = dataclasses.replace(BASE, max_filtered_fraction=1.0)
    simulation, outcome = simulate(tmp_path, settings, world)
    assert outcome.status == "completed"
    reasons = simulation.scheduler.summary()["reasons"]
    assert any("did not answer within environment.step_timeout_s" in r for r in reasons)


def fail_in(port: object, method: str, error: Exception) -> None:
    async def broken(*_: object) -> None:
        raise error

    setattr(port, method, broken)


@pytest.mark.parametrize(
    ("method", "on_trainer"),
    [
        ("park", False),
        ("sleep", False),
        ("wake", False),
        ("generate", False),
        ("start", False),
        ("start", True),
        ("load", True),
        ("train", True),
        ("offload", True),
        ("save", True),
    ],
)
def test_a_port_that_breaks_ends_the_run_with_its_cause(
    tmp_path: Path, method: str, on_trainer: bool
) -> None:
    def prepare(simulation: Simulation) -> None:
        port = simulation.trainer if on_trainer else simulation.inference
        fail_in(port, method, OSError(f"{method} broke"))

    simulation, outcome = simulate(tmp_path, prepare=prepare)
    assert outcome.status == "failed"
    assert f"{method} broke" in str(outcome.error)
    assert not any(e.is_open for e in simulation.environments)
    assert replay(tmp_path).violations == []


@pytest.mark.parametrize("method", ["park", "sleep", "wake"])
def test_a_port_that_hangs_ends_the_run_at_the_deadline_of_its_phase(
    tmp_path: Path, method: str
) -> None:
    async def hang(*_: object) -> None:
        await asyncio.Event().wait()

    def prepare(simulation: Simulation) -> None:
        setattr(simulation.inference, method, hang)

    _, outcome = simulate(tmp_path, prepare=prepare)
    assert outcome.status == "failed"
    assert "deadline" in str(outcome.error)


def test_a_port_that_cannot_be_closed_is_reported_and_the_other_one_is_closed(
    tmp_path: Path,
) -> None:
    def prepare(simulation: Simulation) -> None:
        fail_in(simulation.inference, "close", OSError("still there"))

    simulation, outcome = simulate(tmp_path, prepare=prepare)
    assert outcome.status == "failed"
    assert "still there" in str(outcome.error)
    assert not simulation.trainer.is_loaded


def test_a_stop_in_the_rollout_leaves_a_checkpoint_of_the_present_version(tmp_path: Path) -> None:
    settings = dataclasses.replace(BASE, steps=50)

    def prepare(simulation: Simulation) -> None:
        asyncio.get_running_loop().call_later(30.0, simulation.driver.request_stop, 15)

    simulation, outcome = simulate(tmp_path, settings, prepare=prepare)
    assert (outcome.status, outcome.signal, outcome.error) == ("stopped", 15, None)
    version = simulation.trainer.version
    assert 0 < version < 50
    assert list(simulation.checkpoints.saved) == [version]
    assert replay(tmp_path).violations == []


def test_a_resumed_run_trains_each_prompt_once_over_both_lives(tmp_path: Path) -> None:
    settings = dataclasses.replace(BASE, steps=10)
    first_dir, second_dir = tmp_path / "first", tmp_path / "second"
    first_dir.mkdir()
    second_dir.mkdir()

    def stop_soon(simulation: Simulation) -> None:
        asyncio.get_running_loop().call_later(20.0, simulation.driver.request_stop, 2)

    first, _ = simulate(first_dir, settings, prepare=stop_soon)
    (state,) = first.checkpoints.saved.values()

    async def again() -> Simulation:
        simulation = Simulation(settings, SimSettings(), second_dir / "events.jsonl")
        outcome = await simulation.run(state)
        assert outcome.status == "completed"
        return simulation

    second = run_virtual(again())
    trained = [
        sample.group
        for life in (first, second)
        for batch in life.trainer.trained
        for sample in batch.samples
    ]
    per_group = {group: trained.count(group) for group in trained}
    assert set(per_group.values()) == {settings.group_size}
    assert second.trainer.version == 10
    assert replay(second_dir).violations == []


def test_a_resumed_run_knows_what_the_run_had_learned_and_its_journal_replays(
    tmp_path: Path,
) -> None:
    settings = dataclasses.replace(BASE, steps=12, policy="adaptive", checkpoint_every_steps=4)
    first_dir, second_dir = tmp_path / "first", tmp_path / "second"
    first_dir.mkdir()
    second_dir.mkdir()
    first, _ = simulate(first_dir, settings)
    state = first.checkpoints.saved[min(first.checkpoints.saved)]
    learned = json.loads(json.dumps(state.learned))

    async def again() -> Simulation:
        simulation = Simulation(settings, SimSettings(), second_dir / "events.jsonl")
        outcome = await simulation.run(dataclasses.replace(state, learned=learned))
        assert outcome.status == "completed"
        return simulation

    assert learned["num_cycles"] > 0
    second = run_virtual(again())
    assert second.scheduler.costs.num_cycles > learned["num_cycles"]
    entries = list(read_journal(second_dir / "events.jsonl"))
    first_swap = next(a for e in entries for a in e.actions if isinstance(a, CloseSwap))
    assert first_swap.predicted_cost_s is not None, "the first swap is predicted already"
    assert replay(second_dir).violations == []


@pytest.mark.parametrize("learned", [{"schema": 99}, {"schema": 1}, {"schema": 1, "tokens": []}])
def test_what_cannot_be_read_of_the_costs_is_learned_anew_and_a_person_is_told(
    learned: dict[str, Any], tmp_path: Path
) -> None:
    async def main() -> Simulation:
        simulation = Simulation(BASE, SimSettings(), tmp_path / "events.jsonl")
        await simulation.run(RunState(version=Version(1), learned=learned))
        return simulation

    simulation = run_virtual(main())
    (warning,) = simulation.scheduler.summary()["warnings"]
    assert "learned anew" in warning
    assert replay(tmp_path).violations == []


def test_the_engine_of_a_resumed_run_serves_nothing_before_the_checkpoint_is_published(
    tmp_path: Path,
) -> None:
    class Watchful(SimInference):
        async def generate(self, request):  # type: ignore[no-untyped-def]
            assert self.version > 0
            return await super().generate(request)

    async def main() -> str:
        settings = dataclasses.replace(BASE, steps=6)
        journal = tmp_path / "events.jsonl"
        simulation = Simulation(settings, SimSettings(), journal, inference=Watchful())
        outcome = await simulation.run(RunState(version=Version(3)))
        return outcome.status

    assert run_virtual(main()) == "completed"


# The journal


def test_a_run_cannot_overwrite_another_ones_journal(tmp_path: Path) -> None:
    simulate(tmp_path)
    with pytest.raises(FileExistsError):
        simulate(tmp_path)


def test_a_removed_line_is_caught(tmp_path: Path) -> None:
    simulate(tmp_path)
    journal = tmp_path / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:50] + lines[51:]))
    with pytest.raises(JournalError, match="line 51"):
        replay(tmp_path)


def test_a_journal_that_a_kill_cut_in_the_middle_of_a_line_is_checked_as_far_as_it_goes(
    tmp_path: Path,
) -> None:
    simulate(tmp_path)
    journal = tmp_path / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:100]) + lines[100][:-20])
    found = replay(tmp_path)
    assert found.violations == []
    assert (found.num_events, found.is_whole) == (100, False)


def test_a_journal_that_ends_between_a_signal_and_the_end_is_not_whole(tmp_path: Path) -> None:
    def prepare(simulation: Simulation) -> None:
        asyncio.get_running_loop().call_later(30.0, simulation.driver.request_stop, 15)

    simulate(tmp_path, dataclasses.replace(BASE, steps=50), prepare=prepare)
    journal = tmp_path / "events.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    signal = next(i for i, line in enumerate(lines) if b'"type":"StopRequested"' in line)
    journal.write_bytes(b"".join(lines[: signal + 1]))
    assert not replay(tmp_path).is_whole
    assert replay(tmp_path).violations == []


def reseal(journal: Path, change: Callable[[list[Any]], None]) -> None:
    """Alters a journal as a faulty scheduler would have written it: with whole chains."""
    entries = [[e.event, list(e.actions)] for e in read_journal(journal)]
    change(entries)
    chain = b""
    with journal.open("wb") as file:
        for seq, (event, actions) in enumerate(entries):
            line, chain = seal(encode_body(seq, event, actions), chain)
            file.write(line)


def remove_one(entries: list[Any]) -> None:
    del entries[60]


def train_twice(entries: list[Any]) -> None:
    at = next(i for i, (e, _) in enumerate(entries) if isinstance(e, ev.BatchTrained))
    again = dataclasses.replace(entries[at][0], time_s=entries[at + 1][0].time_s)
    entries.insert(at + 2, [again, entries[at][1]])


def raise_a_version(entries: list[Any]) -> None:
    for entry in entries:
        event = entry[0]
        if isinstance(event, ev.RequestEnded) and event.spans:
            span = dataclasses.replace(event.spans[0], version=Version(event.spans[0].version + 1))
            entry[0] = dataclasses.replace(event, spans=(span, *event.spans[1:]))
            return


def raise_the_trainers_version(entries: list[Any]) -> None:
    for entry in entries:
        if isinstance(entry[0], ev.BatchTrained):
            entry[0] = dataclasses.replace(entry[0], version=Version(entry[0].version + 1))
            return


def alter_an_action(entries: list[Any]) -> None:
    for entry in entries:
        if isinstance(entry[0], ev.PhaseEnded) and entry[0].phase is Phase.SLEEPING:
            entry[1] = entry[1][:-1]
            return


@pytest.mark.parametrize(
    "change",
    [remove_one, train_twice, raise_a_version, raise_the_trainers_version, alter_an_action],
)
def test_an_altered_journal_with_whole_chains_is_caught_by_what_it_says(
    tmp_path: Path, change: Callable[[list[Any]], None]
) -> None:
    simulate(tmp_path)
    reseal(tmp_path / "events.jsonl", change)
    assert replay(tmp_path).violations


def test_an_untouched_journal_survives_resealing(tmp_path: Path) -> None:
    simulate(tmp_path)
    before = (tmp_path / "events.jsonl").read_bytes()
    reseal(tmp_path / "events.jsonl", lambda _: None)
    assert (tmp_path / "events.jsonl").read_bytes() == before


def test_two_runs_with_one_seed_write_one_journal(tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.mkdir()
    second.mkdir()
    simulate(first)
    simulate(second)
    assert (first / "events.jsonl").read_bytes() == (second / "events.jsonl").read_bytes()


def test_a_virtual_wait_that_can_never_end_is_named() -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()

    with pytest.raises(VirtualDeadlock, match="every task waits"):
        run_virtual(stuck())


def test_a_simulated_trainer_refuses_what_a_real_one_refuses() -> None:
    async def main() -> None:
        trainer = SimTrainer()
        with pytest.raises(ValueError, match="loaded"):
            await trainer.train(None)  # type: ignore[arg-type]

    run_virtual(main())
