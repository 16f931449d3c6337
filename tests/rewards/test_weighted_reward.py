"""Any function as a reward: how it is called, and what becomes of one that breaks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from colocate.config import RewardConfig
from colocate.rewards.weighted import WeightedReward, make_reward
from colocate.rollout.runner import RewardFault
from tests.rewards.episodes import HERE, Closes, episode

Make = Callable[..., WeightedReward]


@pytest.fixture
async def make() -> AsyncIterator[Make]:
    """Makes rewards of functions named as in ``episodes``; closes them afterwards."""
    made: list[WeightedReward] = []

    def of(*terms: Any, timeout_s: float = 60.0, num_workers: int = 1, **ends: Any) -> Any:
        functions = [
            {"function": f"{HERE}:{term}"}
            if isinstance(term, str)
            else {**term, "function": f"{HERE}:{term['function']}"}
            for term in terms
        ]
        config = RewardConfig.model_validate({"functions": functions, "num_workers": num_workers})
        reward = make_reward(config, timeout_s=timeout_s, **ends)
        assert reward is not None
        made.append(reward)
        return reward

    yield of
    for reward in made:
        await reward.close()
        assert reward.pool.process_ids() == []


def test_without_functions_the_environment_rewards() -> None:
    assert make_reward(RewardConfig(), timeout_s=1.0) is None


async def test_a_function_gets_the_trajectory_and_the_columns_it_names(make: Make) -> None:
    score = await make("matches")(episode("a", answer="a", other=1))

    assert score.value == 1.0
    assert score.parts == {"matches": 1.0}


async def test_a_function_with_keyword_arguments_gets_all_columns(make: Make) -> None:
    assert (await make("everything")(episode("a", x=1, y=2))).value == 2


async def test_options_are_arguments_and_go_before_columns(make: Make) -> None:
    reward = make({"function": "matches", "options": {"bonus": 0.5, "answer": "b"}})

    assert (await reward(episode("b", answer="a", bonus=9))).value == 1.5


async def test_a_sum_is_weighted_and_keeps_its_parts(make: Make) -> None:
    reward = make(
        {"function": "length", "weight": 0.1},
        {"function": "awaited", "weight": -2.0, "name": "penalty"},
    )

    score = await reward(episode("ab", "cd", "e"))

    assert score.parts == {"length": 5.0, "penalty": 0.25}
    assert score.value == pytest.approx(0.1 * 5.0 - 2.0 * 0.25)


async def test_turns_come_without_the_models_end_of_text(make: Make) -> None:
    reward = make("matches", end_texts=["<|im_end|>", "<eos>"])

    assert (await reward(episode("a<eos>", answer="a"))).value == 1.0
    assert (await reward(episode("<eos>a", answer="<eos>a"))).value == 1.0


@pytest.mark.parametrize(("what", "value"), [("true", 1.0), ("fraction", 0.25), ("integer", 3.0)])
async def test_a_reward_may_be_any_finite_number(make: Make, what: str, value: float) -> None:
    reward = make({"function": "returns", "options": {"what": what}})

    assert (await reward(episode("a"))).value == value


@pytest.mark.parametrize(
    ("what", "named"),
    [
        ("none", "None of type NoneType, not a number"),
        ("text", "'0.5' of type str, not a number"),
        ("nan", "nan, not a finite number"),
        ("infinite", "inf, not a finite number"),
        ("list", "of type list, not a number"),
        ("complex", "of type complex, not a number"),
        ("huge", "not a number"),
    ],
)
async def test_what_is_no_finite_number_is_a_fault_with_the_functions_name(
    make: Make, what: str, named: str
) -> None:
    reward = make({"function": "returns", "options": {"what": what}})

    with pytest.raises(RewardFault, match="the reward `returns` returned") as caught:
        await reward(episode("a"))
    assert named in str(caught.value)


@pytest.mark.parametrize(
    ("function", "named"),
    [
        ("raises", "`raises` raised LookupError: nothing there"),
        ("leaves", "`leaves` raised SystemExit: 3"),
        ("exits", "`exits` raised SystemExit: 3"),
        ("cancels_itself", "`cancels_itself` raised CancelledError: mine"),
        ("dies", "`dies` ended its worker process (status -9)"),
        ("matches", "`matches` it needs the column `answer`, which the prompt does not have"),
    ],
)
async def test_what_breaks_is_a_fault_with_its_cause(make: Make, function: str, named: str) -> None:
    reward = make(function)

    with pytest.raises(RewardFault) as caught:
        await reward(episode("a", other=1))
    assert named in str(caught.value)


@pytest.mark.parametrize("function", ["hangs", "spins", "hangs_politely"])
async def test_what_hangs_is_given_up_at_its_deadline_while_the_loop_goes_on(
    make: Make, function: str
) -> None:
    reward = make(function, timeout_s=0.5)
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            await asyncio.sleep(0.02)
            ticks += 1

    ticking = asyncio.create_task(tick())
    with pytest.raises(RewardFault, match=r"did not answer within 0\.5 s"):
        await reward(episode("a"))
    ticking.cancel()
    assert ticks >= 5


async def test_a_worker_that_was_killed_is_replaced(make: Make) -> None:
    reward = make("hangs_if_asked", timeout_s=20.0)
    first = (await reward(episode("a", wait=False))).value
    reward._timeout_s = 0.5

    with pytest.raises(RewardFault, match="its worker was killed"):
        await reward(episode("a", wait=True))

    assert reward.pool.process_ids() == []
    reward._timeout_s = 20.0
    assert (await reward(episode("a", wait=False))).value != first


async def test_workers_are_kept_and_bounded(make: Make) -> None:
    reward = make("process_id", num_workers=2)

    scores = await asyncio.gather(*(reward(episode("a")) for _ in range(20)))

    pids = {int(score.value) for score in scores}
    assert 1 <= len(pids) <= 2
    assert pids == set(reward.pool.process_ids())


async def test_what_a_function_prints_does_not_disturb(make: Make) -> None:
    reward = make("talks")

    assert [(await reward(episode("a"))).value for _ in range(3)] == [0.5] * 3


async def test_an_object_is_made_once_with_its_options(make: Make) -> None:
    reward = make({"function": "Counts", "options": {"start": 10}})

    assert [(await reward(episode("a"))).value for _ in range(3)] == [11, 12, 13]
    assert (await reward(episode("a"))).parts == {"counts": 14}


async def test_an_object_that_can_be_closed_is_closed(make: Make) -> None:
    before = Closes.closed
    reward = make("Closes")
    await reward(episode("a"))

    await reward.close()

    assert Closes.closed == before + 1


async def test_a_caller_that_is_cancelled_costs_no_worker(make: Make) -> None:
    reward = make("process_id")
    first = (await reward(episode("a"))).value
    given_up = asyncio.create_task(reward(episode("a")))
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.gather(given_up, return_exceptions=True)

    assert (await reward(episode("a"))).value == first


async def test_columns_that_cannot_be_sent_are_a_fault(make: Make) -> None:
    with pytest.raises(RewardFault, match="cannot be sent to a worker"):
        await make("everything")(episode("a", x=lambda: 1))


async def test_closing_does_not_wait_for_what_hangs(make: Make) -> None:
    reward = make("hangs")
    call = asyncio.create_task(reward(episode("a")))
    await asyncio.sleep(0.5)
    began_s = time.monotonic()

    await reward.close()

    assert time.monotonic() - began_s < 30
    assert isinstance((await asyncio.gather(call, return_exceptions=True))[0], BaseException)


# TRL's signature


@pytest.mark.parametrize(
    ("function", "value"), [("trl_length", 3.0), ("trl_answer", 1.0), ("trl_awaited", 2.0)]
)
async def test_a_function_for_trl_is_taken_as_it_is(
    make: Make, function: str, value: float
) -> None:
    assert (await make(function)(episode("yes", answer="yes"))).value == value


async def test_a_conversation_reaches_a_function_for_trl_as_messages(make: Make) -> None:
    messages = [{"role": "user", "content": "What?"}]

    assert (await make("trl_chat")(episode("that", messages=messages))).value == 1.0


async def test_none_from_trl_leaves_the_function_out_of_the_sum(make: Make) -> None:
    reward = make("trl_sometimes", "trl_length")

    assert (await reward(episode("bc"))).parts == {"trl_length": 2.0}
    assert (await reward(episode("ab"))).parts == {"trl_sometimes": 1.0, "trl_length": 2.0}


async def test_a_trajectory_that_no_function_has_a_reward_for_is_a_fault(make: Make) -> None:
    with pytest.raises(RewardFault, match="no reward function had a reward"):
        await make("trl_sometimes")(episode("bc"))


@pytest.mark.parametrize(
    ("function", "named"),
    [
        ("trl_too_many", "returned 2 rewards for 1 completion"),
        ("trl_no_list", "not a list of rewards"),
    ],
)
async def test_what_is_no_list_of_one_is_a_fault(make: Make, function: str, named: str) -> None:
    with pytest.raises(RewardFault, match=named):
        await make(function)(episode("a"))
