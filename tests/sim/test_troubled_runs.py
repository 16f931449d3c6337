"""Runs in which something outside of the ports goes wrong."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from colocate.core.types import FinishReason, GroupId, Span, Version
from colocate.ports import Generation, Prompt, StepOutcome
from colocate.rollout.seam import cut_at_stop
from colocate.sim.clock import run_virtual
from colocate.sim.ports import SimEnvironment, SimPrompts
from colocate.sim.run import SimSettings
from tests.sim.test_simulated_runs import BASE, replay, simulate


def outcome_with(tmp_path: Path, world: SimSettings | None = None, **patches: Any) -> Any:
    """Runs with methods of environments and prompts replaced."""
    with pytest.MonkeyPatch.context() as patch:
        for name, method in patches.items():
            owner = SimPrompts if name == "prompt" else SimEnvironment
            patch.setattr(owner, name, method)
        simulation, outcome = simulate(tmp_path, world=world)
    return simulation.scheduler.summary(), outcome


def test_a_context_that_is_full_ends_the_trajectory_and_it_is_trained(tmp_path: Path) -> None:
    async def talk(self: SimEnvironment, action: str) -> StepOutcome:
        return StepOutcome(observation="x" * 40, reward=0.1)

    world = SimSettings(max_model_len=100, max_turns=50)
    summary, outcome = outcome_with(tmp_path, world, step=talk)
    assert outcome.status == "completed"
    assert summary["trajectories"]["trained"] == 24
    assert replay(tmp_path).violations == []


def test_prompts_that_leave_no_room_end_the_run_with_the_field_to_change(tmp_path: Path) -> None:
    def huge(self: SimPrompts, position: GroupId) -> Prompt:
        return Prompt(text="x" * 1000)

    _, outcome = outcome_with(tmp_path, prompt=huge)
    assert outcome.status == "failed"
    assert "inference.max_model_len" in str(outcome.error)


@pytest.mark.parametrize(
    "answer",
    [None, "low", StepOutcome(observation="", reward=float("nan")), StepOutcome(observation=b"")],  # type: ignore[arg-type]
)
def test_an_answer_that_is_none_is_a_fault_of_the_environment(tmp_path: Path, answer: Any) -> None:
    async def garbage(self: SimEnvironment, action: str) -> Any:
        return answer

    summary, outcome = outcome_with(tmp_path, step=garbage)
    assert outcome.status == "failed"
    assert "lost to faults" in str(outcome.error)
    assert "step returned" in str(outcome.error)
    assert summary["trajectories"]["trained"] == 0


def test_an_environment_that_cannot_be_made_is_a_fault_and_not_a_crash(tmp_path: Path) -> None:
    def broken(self: SimEnvironment, settings: object) -> None:
        raise PermissionError("no sandbox for you")

    _, outcome = outcome_with(tmp_path, __init__=broken)
    assert outcome.status == "failed"
    assert "no sandbox for you" in str(outcome.error)


def test_an_environment_that_never_closes_does_not_hold_up_the_end(tmp_path: Path) -> None:
    async def stuck(self: SimEnvironment) -> None:
        await asyncio.Event().wait()

    settings = dataclasses.replace(BASE, steps=50)

    def prepare(simulation: Any) -> None:
        asyncio.get_running_loop().call_later(20.0, simulation.driver.request_stop, 15)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimEnvironment, "close", stuck)
        simulation, outcome = simulate(tmp_path, settings, prepare=prepare)
    assert outcome.status == "stopped"
    assert simulation.scheduler.swapper.now_s < 20 + BASE.grace_s


def test_an_engine_that_cannot_be_closed_in_time_is_let_go_with_its_cause(tmp_path: Path) -> None:
    async def stuck() -> None:
        await asyncio.Event().wait()

    def prepare(simulation: Any) -> None:
        simulation.inference.close = stuck

    _, outcome = simulate(tmp_path, prepare=prepare)
    assert outcome.status == "failed"
    assert "closing has not ended" in str(outcome.error)


def test_a_disk_that_is_full_ends_the_run_with_its_cause(tmp_path: Path) -> None:
    written = 0

    def prepare(simulation: Any) -> None:
        write = simulation.driver._journal.write

        def full(event: object, actions: object) -> None:
            nonlocal written
            written += 1
            if written > 100:
                raise OSError(28, "No space left on device")
            write(event, actions)

        simulation.driver._journal.write = full

    simulation, outcome = simulate(tmp_path, prepare=prepare)
    assert outcome.status == "failed"
    assert "No space left" in str(outcome.error)
    assert not simulation.trainer.is_loaded


# Stop strings over a park


def letters(token_ids: Any) -> str:
    return "".join(chr(t) for t in token_ids)


def tokens(text: str) -> list[int]:
    return [ord(c) for c in text]


def generated(text: str, reason: FinishReason) -> Generation:
    return Generation(
        request_id="1",
        token_ids=tokens(text),
        logprobs=[-1.0] * len(text),
        spans=(Span(version=Version(0), length=len(text)),) if text else (),
        finish_reason=reason,
    )


@pytest.mark.parametrize(
    ("earlier", "new", "kept", "reason"),
    [
        ("ab</to", "ol>xyz", 3, FinishReason.STOP),
        ("ab</tool", ">", 1, FinishReason.STOP),
        ("ab</to", "ast", 3, FinishReason.LENGTH),
        ("", "</tool>", 7, FinishReason.LENGTH),
        ("ab", "", 0, FinishReason.LENGTH),
    ],
)
def test_a_stop_string_that_a_park_cut_in_two_still_ends_the_turn(
    earlier: str, new: str, kept: int, reason: FinishReason
) -> None:
    generation = generated(new, FinishReason.LENGTH)
    found = cut_at_stop(tokens(earlier), generation, ("</tool>",), letters)
    assert found == (kept, reason)


def test_a_virtual_run_takes_no_real_time() -> None:
    async def sleep_long() -> float:
        await asyncio.sleep(1e6)
        return asyncio.get_running_loop().time()

    assert run_virtual(sleep_long()) == pytest.approx(1e6)
