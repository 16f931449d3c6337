"""Evaluations in whole runs: of the real driver and the real runners, over simulated ports."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from colocate.config import RunConfig
from colocate.core import events as ev
from colocate.core.settings import Settings
from colocate.core.swap import Outcome
from colocate.driver import Observer
from colocate.journal import read_journal
from colocate.loggers.group import LoggerGroup
from colocate.ports import EngineLostError, Prompt, TrainerLostError
from colocate.recorder import Recorder
from colocate.replay import replay
from colocate.report.display import NoDisplay
from colocate.report.records import read_evaluations, read_metrics
from colocate.rollout.evaluation import EvaluationPlan
from colocate.sim.clock import run_virtual
from colocate.sim.ports import SimEnvironmentSettings
from colocate.sim.run import SimSettings, Simulation, rules_of
from tests.config.trees import with_values
from tests.mortality import Mortal

BASE = Settings(steps=4, group_size=3, groups_per_step=2, max_staleness=2)
NUM_PROMPTS, NUM_EACH = 5, 2
EVALUATED = {"eval_every_steps": 2, "eval_num_samples": NUM_PROMPTS * NUM_EACH}


def plan(world: SimSettings) -> EvaluationPlan:
    return EvaluationPlan(
        prompts=[Prompt(text="?" * (i + 1), columns={"position": -i}) for i in range(NUM_PROMPTS)],
        rules=dataclasses.replace(rules_of(world), max_new_tokens=16),
        samples_per_prompt=NUM_EACH,
        k=NUM_EACH,
        pass_reward=0.5,
        max_episodes=4,
        in_thread=False,
    )


def run(
    run_dir: Path,
    world: SimSettings | None = None,
    *,
    stop_at_s: float | None = None,
    observers: Sequence[Observer] = (),
    lose: tuple[str, float] | None = None,
    **changes: Any,
) -> tuple[Simulation, Outcome]:
    settings = dataclasses.replace(BASE, **changes)
    world = world or SimSettings()

    async def main() -> tuple[Simulation, Outcome]:
        simulation = Simulation(
            settings,
            world,
            run_dir / "events.jsonl",
            observers,
            evaluation=plan(world) if settings.eval_every_steps else None,
        )
        if stop_at_s is not None:
            loop = asyncio.get_running_loop()
            loop.call_at(loop.time() + stop_at_s, simulation.driver.request_stop, 15)
        if lose is not None:
            process, at_s = lose
            mortal = {
                "engine": Mortal(simulation.inference, EngineLostError, "the engine"),
                "trainer": Mortal(simulation.trainer, TrainerLostError, "rank 0"),
            }[process]
            loop = asyncio.get_running_loop()
            loop.call_at(loop.time() + at_s, mortal.strike, "dies")
        before = asyncio.all_tasks()
        outcome = await simulation.run()
        assert asyncio.all_tasks() == before, "a task was left behind"
        assert not any(environment.is_open for environment in simulation.environments)
        return simulation, outcome

    run_dir.mkdir(exist_ok=True)
    simulation, outcome = run_virtual(main())
    (run_dir / "summary.json").write_text(json.dumps(simulation.scheduler.summary()))
    assert replay(run_dir).violations == []
    return simulation, outcome


def ended(run_dir: Path) -> list[ev.EvaluationEnded]:
    entries = read_journal(run_dir / "events.jsonl")
    return [e.event for e in entries if isinstance(e.event, ev.EvaluationEnded)]


def trained(simulation: Simulation) -> list[Any]:
    return [
        [(s.trajectory, s.group, [*s.token_ids], [*s.versions], s.reward) for s in batch.samples]
        for batch in simulation.trainer.trained
    ]


@pytest.mark.parametrize("policy", ["interval", "timed", "drain", "adaptive"])
def test_a_run_with_evaluations_completes_balances_and_replays(tmp_path: Path, policy: str) -> None:
    simulation, outcome = run(tmp_path, policy=policy, period_s=2.0, **EVALUATED)
    assert outcome.status == "completed"
    found = ended(tmp_path)
    # A swap may train several batches: the evaluation is of the version that it comes to.
    first, *between, last = [event.version for event in found]
    assert (first, last) == (0, 4)
    assert len(between) == 1
    summary = simulation.scheduler.summary()["eval"]
    assert summary["samples"] == {"scored": 30, "lost": 0, "cut": 0}
    assert summary["first"]["step"] == 0
    assert summary["last"] == {"step": 4, **found[-1].metrics}
    assert {"pass@1", "pass@2", "reward_mean"} <= found[0].metrics.keys()


def test_what_is_trained_is_the_same_with_and_without_evaluations(tmp_path: Path) -> None:
    """A drained run trains all that it admits, whenever the swap comes: only draws could differ."""
    apart, _ = run(tmp_path / "apart", policy="drain")
    evaluated, _ = run(tmp_path / "evaluated", policy="drain", **EVALUATED)
    assert trained(apart) == trained(evaluated)
    assert apart.scheduler.cursor == evaluated.scheduler.cursor


def test_an_evaluation_plays_the_same_each_time_but_for_the_weights(tmp_path: Path) -> None:
    """The simulated engine does not learn, so that each evaluation must find the same."""
    run(tmp_path, **EVALUATED)
    first, *others = [event.metrics for event in ended(tmp_path)]
    assert len(others) == 2
    assert all(other == first for other in others)


def test_an_evaluation_that_takes_too_long_is_cut_and_told(tmp_path: Path) -> None:
    simulation, outcome = run(tmp_path, eval_timeout_s=3.0, **EVALUATED)
    assert outcome.status == "completed"
    summary = simulation.scheduler.summary()["eval"]
    assert summary["evaluations"] == 3
    assert summary["cut"] == {"eval.timeout_s = 3.0": 3}
    assert summary["samples"]["scored"] > 0
    assert summary["samples"]["cut"] > 0
    assert sum(summary["samples"].values()) == 30


def test_a_stop_in_an_evaluation_ends_it_and_the_run(tmp_path: Path) -> None:
    simulation, outcome = run(tmp_path, stop_at_s=4.0, **EVALUATED)
    assert (outcome.status, outcome.signal) == ("stopped", 15)
    summary = simulation.scheduler.summary()["eval"]
    assert summary["cut"] == {"the run was stopped": 1}
    [event] = ended(tmp_path)
    assert event.num_cut > 0
    assert not event.metrics


def test_samples_that_environments_spoil_are_counted_by_reason(tmp_path: Path) -> None:
    world = SimSettings(
        environment=SimEnvironmentSettings(failure_probability=0.1, invalid_probability=0.1)
    )
    simulation, outcome = run(tmp_path, world, max_filtered_fraction=1.0, **EVALUATED)
    assert outcome.status == "completed"
    summary = simulation.scheduler.summary()["eval"]
    assert summary["samples"]["lost"] == sum(summary["lost"].values()) > 0
    assert any("sandbox went away" in reason for reason in summary["lost"])
    assert "its environment called it invalid" in summary["lost"]
    assert len(simulation.trainer.trained) == BASE.steps


def test_the_checkpoint_of_each_evaluation_is_rated(tmp_path: Path) -> None:
    simulation, _ = run(tmp_path, keep_best=True, **EVALUATED)
    rated = simulation.checkpoints.ratings
    assert {version: by for version, (_, by) in rated.items()} == {
        2: "eval/pass@1",
        4: "eval/pass@1",
    }
    assert [value for value, _ in rated.values()] == [
        event.metrics["pass@1"] for event in ended(tmp_path)[1:]
    ]


@pytest.mark.parametrize("at_s", [4.0, 20.0])
@pytest.mark.parametrize("process", ["engine", "trainer"])
def test_a_loss_leaves_one_line_of_each_version_in_eval_jsonl(
    tmp_path: Path, process: str, at_s: float
) -> None:
    config = RunConfig.model_validate(with_values({}))
    recorder = Recorder(config, tmp_path, NoDisplay(), LoggerGroup({}))
    simulation, outcome = run(
        tmp_path, observers=[recorder], lose=(process, at_s), max_restarts=3, **EVALUATED
    )
    recorder.close()
    assert outcome.status == "completed", outcome.error
    rows = read_evaluations(tmp_path)
    assert [row["step"] for row in rows] == [0, 2, 4]
    assert all(row["num_samples"] == NUM_PROMPTS * NUM_EACH for row in rows)
    summary = simulation.scheduler.summary()
    assert summary["recoveries"][process] == 1
    assert summary["eval"]["last"]["step"] == 4


class Kept:
    """A tracker that remembers what it was given, by step and name."""

    def __init__(self) -> None:
        self.values: dict[int, dict[str, float]] = {}

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.values.setdefault(step, {}).update(values)

    def close(self, *, succeeded: bool) -> None:
        return


def test_each_evaluation_is_a_line_of_a_file_and_reaches_the_trackers(tmp_path: Path) -> None:
    kept = Kept()
    group = LoggerGroup({"kept": lambda: kept})
    config = RunConfig.model_validate(with_values({}))
    recorder = Recorder(config, tmp_path, NoDisplay(), group)
    run(tmp_path, observers=[recorder], **EVALUATED)
    recorder.close()
    group.close(succeeded=True)
    assert group.summary()["kept"]["failed"] == 0

    rows = read_evaluations(tmp_path)
    assert [row["step"] for row in rows] == [event.version for event in ended(tmp_path)]
    assert all(row["num_lost"] == row["num_cut"] == 0 for row in rows)
    assert {step: values.get("eval/pass@1") for step, values in kept.values.items()} == {
        step: next((row["pass@1"] for row in rows if row["step"] == step), None)
        for step in kept.values
    }
    for row in read_metrics(tmp_path / "metrics.jsonl"):
        values = kept.values[row["step"]]
        assert values["rollout/reward_mean"] == row["reward_mean"]
        assert values["swap/count"] == row["swaps"]
        assert values["memory/used_bytes"] > 0
        assert values["swap/cost_s"] > 0
