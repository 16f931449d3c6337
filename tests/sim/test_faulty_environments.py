"""Runs whose environments break: every fault is counted once, and too many stop the run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from colocate.adapters.environments.latency import DelayedEnvironment, LognormalLatency
from colocate.core.settings import Settings
from colocate.embedded.digits import DigitPrompts
from colocate.ports import Prompt, StepOutcome
from colocate.replay import replay
from colocate.sim.run import SimSettings, Simulation
from tests.faulty_environment import KINDS, FaultBooks, FaultyDigitSearch
from tests.sim.test_simulated_runs import simulate

SETTINGS = Settings(steps=20, group_size=4, groups_per_step=4, max_staleness=1)
WORLD = SimSettings(max_new_tokens=3, max_turns=5, max_model_len=64, step_timeout_s=5.0, seed=3)
LATENCY = LognormalLatency(median_s=0.2, sigma=1.0, cap_s=4.0)


def run_with_faults(
    tmp_path: Path, fraction: float, settings: Settings = SETTINGS, *, kinds: Any = KINDS
) -> tuple[Any, Any, FaultBooks]:
    record = tmp_path / "faults.jsonl"

    def prepare(simulation: Simulation) -> None:
        def make() -> DelayedEnvironment:
            inner = FaultyDigitSearch(fraction, str(record), kinds)
            return DelayedEnvironment(inner, LATENCY)

        simulation.replace_ports(make_environment=make, prompts=DigitPrompts())

    simulation, outcome = simulate(tmp_path, settings, WORLD, prepare)
    return simulation.scheduler.summary(), outcome, FaultBooks.of(tmp_path, record, WORLD.seed)


@pytest.mark.parametrize("policy", ["interval", "drain"])
def test_at_30_percent_every_fault_is_one_ending_and_the_run_completes(
    tmp_path: Path, policy: Any
) -> None:
    settings = dataclasses.replace(SETTINGS, policy=policy)
    summary, outcome, books = run_with_faults(tmp_path, 0.3, settings)
    assert outcome.status == "completed", outcome.error
    counts = summary["trajectories"]
    books.check(counts)
    assert set(books.injected.values()) == set(KINDS)
    assert counts["filtered"] > counts["masked"] > 0
    # Few are hit when it is too late: those of the last moment, and what a swap has expired.
    assert len(books.struck_too_late) <= counts["expired"] + counts["resident"]
    share = len(books.injected) / counts["admitted"]
    assert 0.2 < share < 0.4
    assert replay(tmp_path).violations == []


@pytest.mark.parametrize("kinds", [KINDS, *([kind] for kind in KINDS)])
def test_at_60_percent_a_run_stops_and_says_what_fails(tmp_path: Path, kinds: Any) -> None:
    settings = dataclasses.replace(SETTINGS, steps=1000)
    summary, outcome, books = run_with_faults(tmp_path, 0.6, settings, kinds=kinds)
    assert outcome.status == "failed"
    assert "consecutive trajectories were lost to faults or called invalid" in str(outcome.error)
    assert "buffer.max_filtered_fraction = 0.5" in str(outcome.error)
    assert "most often" in str(outcome.error)
    books.check(summary["trajectories"])
    assert summary["trajectories"]["admitted"] < 800
    assert replay(tmp_path).violations == []


def test_what_a_trajectory_ran_out_of_is_counted_by_name_and_masked_on_request(
    tmp_path: Path,
) -> None:
    settings = dataclasses.replace(SETTINGS, mask_truncated=True, steps=3)
    summary, outcome, _ = run_with_faults(tmp_path, 0.01, settings)
    assert outcome.status == "completed", outcome.error
    truncated = summary["truncated"]
    # Of three tokens that a simulated agent draws, seldom one stops the turn.
    assert truncated["rollout.max_new_tokens"] > 0
    masked = {
        reason.removeprefix("masked: truncated: "): count
        for reason, count in summary["reasons"].items()
        if reason.startswith("masked: truncated")
    }
    assert masked == truncated
    assert replay(tmp_path).violations == []


class Endless:
    """An episode that no answer ends."""

    async def reset(self, prompt: Prompt, seed: int) -> str:
        return "?"

    async def step(self, action: str) -> StepOutcome:
        return StepOutcome(observation="?")

    async def close(self) -> None:
        pass


def never_answers(simulation: Simulation) -> None:
    simulation.replace_ports(make_environment=Endless, prompts=DigitPrompts())


def test_a_run_whose_every_trajectory_is_truncated_and_masked_stops_and_says_so(
    tmp_path: Path,
) -> None:
    settings = Settings(
        steps=3, group_size=2, groups_per_step=2, max_staleness=1, mask_truncated=True
    )
    simulation, outcome = simulate(tmp_path, settings, WORLD, never_answers)
    assert outcome.status == "failed"
    assert "100 groups had no trainable token before step 1 could be filled" in str(outcome.error)
    assert "truncated: rollout.max_" in str(outcome.error)
    assert simulation.scheduler.summary()["trajectories"]["trained"] == 0
    assert replay(tmp_path).violations == []
