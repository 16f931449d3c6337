"""Against the real package."""

from __future__ import annotations

import pytest

from colocate.core.types import GroupId
from colocate.environments.reasoning_gym import ReasoningGym, ReasoningGymPrompts

pytest.importorskip("reasoning_gym", reason="needs colocate[reasoning-gym]")


def prompts() -> ReasoningGymPrompts:
    options = {"min_terms": 2, "max_terms": 2}
    return ReasoningGymPrompts(
        "chain_sum", seed=3, size=5, options=options, instruction="Be brief."
    )


def test_questions_come_from_the_seed_and_begin_again_after_the_last() -> None:
    texts = [prompts().prompt(GroupId(position)).text for position in range(10)]
    assert texts[:5] == texts[5:]
    assert len(set(texts)) == 5
    assert texts[0].endswith("\nBe brief.")


@pytest.mark.parametrize(
    ("form", "least", "most"),
    [
        ("{}", 1.0, 1.0),
        (" {}\n", 1.0, 1.0),
        ("<answer>5</answer> no, <answer>{}</answer>", 1.0, 1.0),
        ("It must be {}, I think.", 0.0, 0.5),
        ("nothing", 0.0, 0.0),
    ],
)
async def test_the_packages_scorer_gives_the_reward(form: str, least: float, most: float) -> None:
    prompt = prompts().prompt(GroupId(1))
    environment = ReasoningGym()
    assert await environment.reset(prompt, 0) == ""
    outcome = await environment.step(form.format(prompt.columns["entry"]["answer"]))
    assert outcome.done
    assert least <= outcome.reward <= most
    await environment.close()


def test_a_task_that_is_not_there_or_cannot_be_made_is_refused() -> None:
    with pytest.raises(ValueError, match="does not make the task 'sums'"):
        ReasoningGymPrompts("sums")
    with pytest.raises(ValueError, match="max_terms must be >= min_terms"):
        ReasoningGymPrompts("chain_sum", options={"min_terms": 3, "max_terms": 2})
