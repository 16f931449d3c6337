"""How much of the environments' time that could pass during swaps did, by hand-written journals."""

from __future__ import annotations

import pytest

from colocate.core.actions import Park, StartTrajectory
from colocate.core.events import PhaseEnded, TurnReady
from colocate.core.phases import Phase
from colocate.core.types import GroupId, TrajectoryId
from colocate.journal import Entry
from tools.policy_bench.hiding import hidden_share


class TakesTen:
    """Every step takes ten seconds by its latency, whoever asks."""

    def delay_s(self, seed: int, step: int) -> float:
        return 10.0


def answer(time_s: float, busy_s: float, *, attempt: int = 0) -> Entry:
    event = TurnReady(
        time_s=time_s,
        trajectory=TrajectoryId(7),
        attempt=attempt,
        num_context_tokens=1,
        busy_s=busy_s,
        base="",
        digest="",
    )
    return Entry(0, event, ())


def started(attempt: int = 0) -> Entry:
    action = StartTrajectory(trajectory=TrajectoryId(7), group=GroupId(0), attempt=attempt)
    return Entry(0, PhaseEnded(time_s=0.0, phase=Phase.STARTING), (action,))


def swap(parked_s: float, awake_s: float) -> list[Entry]:
    parked = Entry(0, PhaseEnded(time_s=parked_s, phase=Phase.ROLLOUT), (Park(),))
    return [parked, Entry(0, PhaseEnded(time_s=awake_s, phase=Phase.KV_WAKING), ())]


RESET = answer(1.0, 1.0)


@pytest.mark.parametrize(
    ("answered_s", "busy_s", "parked_s", "awake_s", "share"),
    [
        # Begun at 20, due at 30: five seconds of its latency fall into the swap, and are over.
        (30.0, 10.0, 25.0, 40.0, 1.0),
        # Held up by the swap, but answered by the time that anybody could go on with it.
        (38.0, 18.0, 25.0, 40.0, 1.0),
        # Of 5 s that could be hidden, 2 were waited for afterwards.
        (42.0, 22.0, 25.0, 40.0, 0.6),
        # Due three seconds after a swap of five: those three are nobody's fault, three more are.
        (33.0, 13.0, 22.0, 27.0, 0.4),
        (30.0, 10.0, 22.0, 27.0, 1.0),
        # It stood still through the swap and long after: nothing was hidden.
        (90.0, 70.0, 22.0, 27.0, 0.0),
        # An episode that ended by itself, without a step.
        (26.0, 0.5, 25.6, 40.0, 1.0),
    ],
)
def test_what_is_waited_for_after_a_swap_and_need_not_be_was_not_hidden(
    answered_s: float, busy_s: float, parked_s: float, awake_s: float, share: float
) -> None:
    entries = [started(), RESET, *swap(parked_s, awake_s), answer(answered_s, busy_s)]
    assert hidden_share(entries, TakesTen(), 0) == pytest.approx(share)


@pytest.mark.parametrize(
    "entries",
    [
        # A reset has no latency of the model's; a wait outside all swaps; an attempt given up.
        [started(), *swap(0.2, 0.8), RESET],
        [started(), RESET, answer(12.0, 10.0), *swap(20.0, 30.0)],
        [started(), RESET, started(attempt=1), *swap(20.0, 30.0), answer(32.0, 10.0)],
    ],
)
def test_where_nothing_could_be_hidden_there_is_no_share(entries: list[Entry]) -> None:
    assert hidden_share(entries, TakesTen(), 0) is None
