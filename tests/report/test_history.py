"""A journal of any length is told in bounded memory, and nothing in it is lost on the way."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import pytest

from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.phases import Phase
from colocate.core.types import BatchId, Ending, GroupId, TrajectoryId, Version
from colocate.journal import Entry, read_journal
from colocate.report.history import NUM_LONGEST, read_history, shape_of, version_spans
from tests.sim.test_resumed_runs import live, newest
from tests.sim.test_simulated_runs import BASE, simulate


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_every_trajectory_of_a_run_is_counted_once_by_its_ending(
    tmp_path: Path, max_staleness: int
) -> None:
    settings = dataclasses.replace(BASE, steps=6, max_staleness=max_staleness)
    simulation, _ = simulate(tmp_path, settings)
    summary = simulation.scheduler.summary()

    history = read_history(read_journal(tmp_path / "events.jsonl"))

    counts: dict[str, int] = {}
    for each in history.endings:
        counts[each.ending] = counts.get(each.ending, 0) + len(each.num_tokens)
    told = {k: n for k, n in summary["trajectories"].items() if n and k != "admitted"}
    assert counts == told
    assert sum(counts.values()) == summary["trajectories"]["admitted"]


def test_what_a_resumed_run_took_up_is_counted_too_with_its_earlier_tokens(tmp_path: Path) -> None:
    live(tmp_path / "a", stop_at_s=27.0)
    origin = newest(tmp_path / "a")
    summary = live(tmp_path / "b", origin=origin).scheduler.summary()

    history = read_history(read_journal(tmp_path / "b" / "events.jsonl"))

    counts = {each.ending: 0 for each in history.endings}
    for each in history.endings:
        counts[each.ending] += len(each.num_tokens)
    told = {k: n for k, n in summary["trajectories"].items() if n and k != "admitted"}
    assert counts == told
    tokens = sum(sum(each.num_tokens) for each in history.endings)
    assert tokens == summary["tokens"]["generated"] + summary["resumed"]["tokens"]


def test_every_swap_has_its_decision_with_what_the_journal_says_of_it(tmp_path: Path) -> None:
    simulation, _ = simulate(tmp_path, dataclasses.replace(BASE, steps=6, sleep="2"))
    summary = simulation.scheduler.summary()

    history = read_history(read_journal(tmp_path / "events.jsonl"))

    assert len(history.decisions) == summary["swaps"]
    assert [d.facts["swap"] for d in history.decisions] == list(range(1, summary["swaps"] + 1))
    assert all(d.facts["mode"] == "2" for d in history.decisions)
    assert [d.batches for d in history.decisions] == [[step] for step in range(6)]
    assert sum(d.num_expired for d in history.decisions) == summary["trajectories"]["expired"]
    rollout_s = sum(d.rollout_s for d in history.decisions)
    assert rollout_s == pytest.approx(summary["phase_s"]["rollout"], abs=1e-3)
    for phase in (Phase.SLEEPING, Phase.TRAINING, Phase.PUBLISHING):
        seconds = sum(d.phase_s[phase] for d in history.decisions)
        assert seconds == pytest.approx(summary["phase_s"][phase], abs=1e-3)


def test_the_longest_lives_are_kept_whole_and_in_order(tmp_path: Path) -> None:
    simulation, _ = simulate(tmp_path, dataclasses.replace(BASE, steps=8))
    lives = read_history(read_journal(tmp_path / "events.jsonl")).longest

    assert len(lives) == NUM_LONGEST < simulation.scheduler.summary()["trajectories"]["admitted"]
    lengths = [life.ended_s - life.began_s for life in lives if life.ended_s is not None]
    assert lengths == sorted(lengths, reverse=True)
    for life in lives:
        assert sum(version_spans(life).values()) == life.num_tokens
        assert all(life.began_s <= g.start_s <= g.end_s for g in life.generations)
    assert max(len(version_spans(life)) for life in lives) >= 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Weigh(act.Action):
    """What a policy that this package does not know yet might journal."""

    wait_value_s: float
    swap_cost_s: float


def entry(event: ev.Event, *actions: act.Action) -> Entry:
    return Entry(seq=0, event=event, actions=actions)


def test_a_decision_carries_whatever_a_policy_journals_with_it() -> None:
    timer = ev.TimerFired(time_s=5.0, timer="swap")
    train = act.Train(batch=BatchId(3), version=Version(3), trajectories=())
    history = read_history(
        [
            entry(ev.PhaseEnded(time_s=1.5, phase=Phase.STARTING)),
            entry(timer, Weigh(wait_value_s=0.25, swap_cost_s=0.75), act.Park()),
            entry(ev.PhaseEnded(time_s=6.0, phase=Phase.TRAINER_WAKING), train),
            entry(ev.PhaseEnded(time_s=9.0, phase=Phase.KV_WAKING)),
            entry(timer, Weigh(wait_value_s=9.0, swap_cost_s=9.0)),
        ]
    )
    (decision,) = history.decisions
    assert decision.facts == {"wait_value_s": 0.25, "swap_cost_s": 0.75}
    assert (decision.time_s, decision.rollout_s, decision.batches) == (5.0, 3.5, [3])


def lost(number: int, reason: str) -> list[Entry]:
    identifier = TrajectoryId(number)
    begin = act.StartTrajectory(trajectory=identifier, group=GroupId(0))
    end = act.EndTrajectory(trajectory=identifier, ending=Ending.FILTERED, reason=reason)
    time_s = float(number)
    return [
        entry(ev.TimerFired(time_s=time_s, timer=""), begin),
        entry(ev.TimerFired(time_s=time_s, timer=""), end),
    ]


def test_reasons_that_differ_in_numbers_only_are_counted_together() -> None:
    reasons = ["no answer in 30 s", "no answer in 31.5 s", "refused", "refused"]
    entries = [e for number, reason in enumerate(reasons) for e in lost(number, reason)]
    found = {each.reason: len(each.num_tokens) for each in read_history(entries).endings}
    assert found == {"no answer in … s": 2, "refused": 2}
    assert shape_of("older than 2") == "older than …"


def test_what_has_not_ended_is_resident_and_warnings_are_kept() -> None:
    begin = act.StartTrajectory(trajectory=TrajectoryId(0), group=GroupId(0))
    warn = act.Warn(message="it grows")
    history = read_history([entry(ev.Faulted(time_s=2.0, error="broken"), begin, warn)])
    assert [(each.ending, len(each.num_tokens)) for each in history.endings] == [("resident", 1)]
    assert history.notices == [(2.0, "fault", "broken"), (2.0, "warning", "it grows")]
