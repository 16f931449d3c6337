"""Runs in which something outside of the ports goes wrong."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from pathlib import Path
from typing import Any

import pytest

from colocate.config import RewardTerm
from colocate.core.types import FinishReason, GroupId, Span, Version
from colocate.ports import Generation, GenerationRequest, Prompt, StepOutcome
from colocate.rewards.weighted import WeightedReward
from colocate.rollout.seam import cut_at_stop
from colocate.sim.clock import run_virtual
from colocate.sim.ports import SimEnvironment, SimInference, SimPrompts
from colocate.sim.run import SimSettings, Simulation
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
    [
        None,
        "low",
        StepOutcome(observation="", reward=float("nan")),
        StepOutcome(observation=b""),  # type: ignore[arg-type]
        StepOutcome(observation="\ud800", done=True),
    ],
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


@pytest.mark.parametrize(
    ("method", "raised"),
    [
        *itertools.product(["__init__", "reset", "step"], [SystemExit(3), OSError("no\nline")]),
        # Only what is awaited can be cancelled.
        ("reset", asyncio.CancelledError()),
        ("step", asyncio.CancelledError()),
    ],
)
def test_whatever_an_environment_raises_is_a_fault_of_its_trajectory_only(
    tmp_path: Path, method: str, raised: BaseException
) -> None:
    def break_down(self: SimEnvironment, *_: object) -> None:
        raise raised

    async def break_down_later(self: SimEnvironment, *_: object) -> None:
        raise raised

    broken = break_down if method == "__init__" else break_down_later
    _, outcome = outcome_with(tmp_path, **{method: broken})
    assert outcome.status == "failed"
    assert "lost to faults" in str(outcome.error)
    assert type(raised).__name__ in str(outcome.error)
    assert replay(tmp_path).violations == []


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
        write = simulation._journal.write

        def full(event: object, actions: object) -> None:
            nonlocal written
            written += 1
            if written > 100:
                raise OSError(28, "No space left on device")
            write(event, actions)

        simulation._journal.write = full

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


# Closing


def test_every_environment_is_closed_to_its_end_however_its_trajectory_ended(
    tmp_path: Path,
) -> None:
    async def slowly(self: SimEnvironment) -> None:
        await asyncio.sleep(3.0)
        self.is_open = False

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimEnvironment, "close", slowly)
        simulation, outcome = simulate(tmp_path)
    assert outcome.status == "completed"
    assert not any(e.is_open for e in simulation.environments)


def test_environments_of_ended_trajectories_that_never_close_do_not_hold_up_the_end(
    tmp_path: Path,
) -> None:
    async def stuck(self: SimEnvironment) -> None:
        await asyncio.Event().wait()

    async def main() -> float:
        settings = dataclasses.replace(BASE, steps=50)
        simulation = Simulation(settings, SimSettings(), tmp_path / "events.jsonl")
        loop = asyncio.get_running_loop()
        loop.call_later(20.0, simulation.driver.request_stop, 15)
        await simulation.run()
        return loop.time()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SimEnvironment, "close", stuck)
        ended_s = run_virtual(main())
    assert ended_s < 20 + BASE.grace_s


def test_a_trainer_is_closed_to_its_end_where_the_engine_cannot_be(tmp_path: Path) -> None:
    closed: list[str] = []

    async def broken() -> None:
        raise OSError("still there")

    async def slowly() -> None:
        await asyncio.sleep(8.0)
        closed.append("trainer")

    def prepare(simulation: Any) -> None:
        simulation.inference.close = broken
        simulation.trainer.close = slowly

    _, outcome = simulate(tmp_path, prepare=prepare)
    assert outcome.status == "failed"
    assert "still there" in str(outcome.error)
    assert closed == ["trainer"]


def test_a_failed_run_gives_up_an_engine_that_cannot_be_closed_and_closes_its_trainer(
    tmp_path: Path,
) -> None:
    closed: list[str] = []

    async def stuck() -> None:
        await asyncio.Event().wait()

    async def closes() -> None:
        closed.append("trainer")

    async def broken(_: object) -> None:
        raise OSError("train broke")

    def prepare(simulation: Any) -> None:
        simulation.trainer.train = broken
        simulation.trainer.close = closes
        simulation.inference.close = stuck

    _, outcome = simulate(tmp_path, world=SimSettings(device_bytes=None), prepare=prepare)
    assert outcome.status == "failed"
    assert "train broke" in str(outcome.error)
    assert closed == ["trainer"]


def test_a_stop_in_the_rollout_frees_the_engines_memory_before_it_loads_the_trainer(
    tmp_path: Path,
) -> None:
    held_at_load: list[int] = []

    def prepare(simulation: Any) -> None:
        asyncio.get_running_loop().call_later(30.0, simulation.driver.request_stop, 15)
        load = simulation.trainer.load

        async def watched() -> None:
            held_at_load.append(simulation.inference.held_bytes)
            await load()

        simulation.trainer.load = watched

    settings = dataclasses.replace(BASE, steps=50)
    simulation, _ = simulate(tmp_path, settings, prepare=prepare)
    assert simulation.checkpoints.saved
    assert held_at_load[-1] == 0


# Other people's code


def test_a_prompt_source_that_breaks_ends_the_run_with_its_cause(tmp_path: Path) -> None:
    def sound_until_7(self: SimPrompts, position: GroupId) -> Prompt:
        if position == 7:
            raise LookupError("row 7 is gone")
        return Prompt(text="?")

    _, outcome = outcome_with(tmp_path, prompt=sound_until_7)
    assert outcome.status == "failed"
    assert "row 7 is gone" in str(outcome.error)
    assert replay(tmp_path).violations == []


def test_an_opening_that_is_no_text_is_a_fault_of_the_environment(tmp_path: Path) -> None:
    async def garbage(self: SimEnvironment, prompt: Prompt, seed: int) -> Any:
        return None

    _, outcome = outcome_with(tmp_path, reset=garbage)
    assert outcome.status == "failed"
    assert "reset returned NoneType" in str(outcome.error)


def test_a_timeout_inside_an_environment_is_not_taken_for_its_deadline(tmp_path: Path) -> None:
    async def impatient(self: SimEnvironment, action: str) -> StepOutcome:
        raise TimeoutError("the sandbox did not answer")

    _, outcome = outcome_with(tmp_path, step=impatient)
    assert "step raised TimeoutError: the sandbox did not answer" in str(outcome.error)


def rewarded(tmp_path: Path, function: str, **options: Any) -> Any:
    """A run whose trajectories a function rewards in place of the environment."""
    reward = WeightedReward(
        [RewardTerm(function=f"tests.rewards.episodes:{function}", options=options)],
        timeout_s=5.0,
        num_workers=1,
    )

    def prepare(simulation: Any) -> None:
        simulation.replace_ports(reward=reward)

    return simulate(tmp_path, prepare=prepare)


def test_a_function_can_reward_in_place_of_the_environment(tmp_path: Path) -> None:
    simulation, outcome = rewarded(tmp_path, "awaited")
    assert outcome.status == "completed"
    assert simulation.scheduler.summary()["reward"]["last"] == 0.25


@pytest.mark.parametrize(
    ("function", "named"),
    [
        ("hangs_politely", "the reward `hangs_politely` did not answer within 5 s"),
        ("exits", "the reward `exits` raised SystemExit: 3"),
        ("cancels_itself", "the reward `cancels_itself` raised CancelledError"),
    ],
)
def test_a_reward_that_breaks_fails_its_trajectory_with_the_cause(
    tmp_path: Path, function: str, named: str
) -> None:
    simulation, outcome = rewarded(tmp_path, function)
    assert outcome.status == "failed"
    assert named in str(outcome.error)
    assert simulation.scheduler.summary()["trajectories"]["failed"] > 0
    assert replay(tmp_path).violations == []


# Time


@pytest.mark.parametrize("period_s", [100.0, 100 + 1 / 3, 100.3000004])
def test_a_timed_swap_comes_in_time_whatever_the_digits_of_its_period(
    tmp_path: Path, period_s: float
) -> None:
    """Everything has finished long before: nothing but the timer asks the policy again."""
    settings = dataclasses.replace(
        BASE, policy="timed", period_s=period_s, max_staleness=0, steps=3
    )
    simulation, outcome = simulate(tmp_path, settings)
    assert outcome.status == "completed"
    rollout_s = simulation.scheduler.summary()["phase_s"]["rollout"]
    assert rollout_s == pytest.approx(3 * period_s, abs=1e-3)


def test_a_turn_whose_last_token_comes_with_the_park_is_over(tmp_path: Path) -> None:
    class Brim(SimInference):
        async def generate(self, request: GenerationRequest) -> Generation:
            generation = await super().generate(request)
            if len(generation.token_ids) < request.max_new_tokens:
                return generation
            return dataclasses.replace(generation, finish_reason=FinishReason.ABORT)

    async def main() -> Any:
        simulation = Simulation(
            BASE, SimSettings(max_new_tokens=3), tmp_path / "events.jsonl", inference=Brim()
        )
        return await simulation.run()

    assert run_virtual(main()).status == "completed"
