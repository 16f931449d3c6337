"""Runs that are stopped or killed at any time, and go on from their checkpoint's buffer."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from colocate.checkpoints import read_state, write_state
from colocate.core import events as ev
from colocate.core.events import PromptCursor
from colocate.core.settings import Settings
from colocate.core.types import Version
from colocate.journal import read_journal
from colocate.ports import Trainer
from colocate.replay import main as replay_main
from colocate.replay import replay
from colocate.rollout.content import Content
from colocate.run_state import RunState
from colocate.sim.clock import run_virtual
from colocate.sim.ports import SimEnvironmentSettings, SimTrainer
from colocate.sim.run import SimSettings, Simulation

BASE = Settings(
    steps=10, group_size=3, groups_per_step=2, max_staleness=2, checkpoint_every_steps=2
)
WORLD = SimSettings(environment=SimEnvironmentSettings(latency_s=1.0))


class FileCheckpoints:
    """Those of a run's folder, written at once: threads do not mix with a virtual clock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.num_saved = len(list(folder.iterdir()))

    async def save(self, trainer: Trainer, state: RunState) -> None:
        self.num_saved += 1
        write_state(self.folder / f"{self.num_saved:03d}", state)

    async def abandon(self, after: int) -> None:
        for path in [p for p in self.folder.iterdir() if read_state(p).version > after]:
            shutil.rmtree(path)

    async def restore(self, trainer: SimTrainer, version: int) -> None:
        trainer.version = Version(version)

    def newest(self) -> RunState:
        return read_state(max(self.folder.iterdir()))


class Killed(Exception):
    """The driver is gone, and nothing was told to end."""


def live(
    run_dir: Path,
    settings: Settings = BASE,
    world: SimSettings = WORLD,
    *,
    origin: RunState | None = None,
    stop_at_s: float | None = None,
    kill_at_s: float | None = None,
) -> Simulation:
    """One life; it has left a summary unless it was killed."""
    (run_dir / "checkpoints").mkdir(parents=True)
    simulation: Simulation | None = None

    async def main() -> Simulation:
        nonlocal simulation
        simulation = Simulation(settings, world, run_dir / "events.jsonl")
        simulation.replace_ports(checkpoints=FileCheckpoints(run_dir / "checkpoints"))
        loop = asyncio.get_running_loop()
        if stop_at_s is not None:
            loop.call_later(stop_at_s, simulation.driver.request_stop, 15)
        running = asyncio.create_task(simulation.run(origin or RunState()))
        if kill_at_s is not None:
            await asyncio.sleep(kill_at_s)
            raise Killed
        await running
        return simulation

    try:
        run_virtual(main())
    except Killed:
        pass
    else:
        assert simulation is not None
        (run_dir / "summary.json").write_text(json.dumps(simulation.scheduler.summary()))
    assert simulation is not None
    return simulation


def newest(run_dir: Path) -> RunState:
    return FileCheckpoints(run_dir / "checkpoints").newest()


def samples(simulation: Simulation, *, up_to: int | None = None) -> list[Any]:
    """Of all batches, or of those that began before a version."""
    return [
        sample
        for batch in simulation.trainer.trained
        if up_to is None or batch.version < up_to
        for sample in batch.samples
    ]


def check_identity(state: RunState, second: Simulation) -> int:
    """What was in the checkpoint and is trained began with the very same tokens; how many did."""
    trained = {sample.trajectory: sample for sample in samples(second)}
    restarted = {
        event.trajectory for event in _events(second) if isinstance(event, ev.EpisodeNotResumed)
    }
    num_identical = 0
    for trajectory, saved in state.contents.items():
        sample = trained.get(trajectory)
        if sample is None or trajectory in restarted:
            continue
        before = Content.restore(saved)
        length = len(before)
        assert sample.token_ids[:length] == before.token_ids
        assert sample.logprobs[:length] == before.logprobs
        assert sample.versions[:length] == before.versions
        assert sample.loss_mask[:length] == before.loss_mask
        num_identical += 1
    return num_identical


def _events(simulation: Simulation) -> list[ev.Event]:
    path = Path(simulation._journal._file.name)
    return [entry.event for entry in read_journal(path)]


def check_each_prompt_once(
    first: Simulation, second: Simulation, state: RunState, settings: Settings
) -> None:
    trained = Counter(
        sample.group for sample in samples(first, up_to=state.version) + samples(second)
    )
    assert set(trained.values()) == {settings.group_size}
    positions = sorted(trained)
    assert len(positions) == settings.steps * settings.groups_per_step


@pytest.mark.parametrize("stop_at_s", [12.0, 20.0, 27.0, 33.0])
def test_a_stopped_run_goes_on_with_its_partials_and_trains_each_prompt_once(
    tmp_path: Path, stop_at_s: float
) -> None:
    first = live(tmp_path / "a", stop_at_s=stop_at_s)
    state = newest(tmp_path / "a")
    before = first.scheduler.summary()
    second = live(tmp_path / "b", origin=state)
    after = second.scheduler.summary()
    check_each_prompt_once(first, second, state, BASE)
    assert check_identity(state, second) > 0
    assert state.buffer is not None
    assert len(state.buffer.residents.trajectories) == before["trajectories"]["resident"]
    assert after["resumed"]["partials"] > 0
    assert after["resumed"]["continued"] >= after["resumed"]["partials"]
    assert after["resumed"]["restarted"] == 0
    assert after["staleness"]["max_trained_lag"] <= BASE.max_staleness
    assert not any(e.is_open for e in second.environments)
    for life in ("a", "b"):
        assert replay(tmp_path / life).violations == []


@pytest.mark.parametrize("kill_at_s", [17.0, 24.5, 31.0])
def test_a_killed_run_goes_on_from_its_last_checkpoint_and_trains_each_prompt_once(
    tmp_path: Path, kill_at_s: float
) -> None:
    settings = dataclasses.replace(BASE, checkpoint_every_steps=1)
    first = live(tmp_path / "a", settings, kill_at_s=kill_at_s)
    assert not (tmp_path / "a" / "summary.json").exists()
    state = newest(tmp_path / "a")
    second = live(tmp_path / "b", settings, origin=state)
    check_each_prompt_once(first, second, state, settings)
    assert check_identity(state, second) > 0
    assert second.scheduler.summary()["resumed"]["partials"] > 0
    for life in ("a", "b"):
        assert replay(tmp_path / life).violations == []


def test_what_has_finished_and_was_not_trained_is_not_sampled_again(tmp_path: Path) -> None:
    settings = dataclasses.replace(BASE, max_staleness=4)
    live(tmp_path / "a", settings, stop_at_s=25.0)
    state = newest(tmp_path / "a")
    assert state.buffer is not None
    finished = {
        r.id: r.num_context_tokens
        for r in state.buffer.residents.trajectories
        if not r.is_unfinished and r.ending is None
    }
    second = live(tmp_path / "b", settings, origin=state)
    assert second.scheduler.summary()["resumed"]["finished"] == len(finished) > 0
    trained = {sample.trajectory: len(sample.token_ids) for sample in samples(second)}
    assert finished.keys() & trained.keys()
    assert all(trained[t] == finished[t] for t in finished.keys() & trained.keys())


def without_replay(world: SimSettings) -> SimSettings:
    environment = dataclasses.replace(world.environment, is_replayable=False)
    return dataclasses.replace(world, environment=environment)


def of_shorter_episodes(world: SimSettings) -> SimSettings:
    return dataclasses.replace(
        world, environment=dataclasses.replace(world.environment, mean_turns=1.01)
    )


def with_less_room(world: SimSettings) -> SimSettings:
    return dataclasses.replace(world, max_new_tokens=1)


def with_faults(world: SimSettings) -> SimSettings:
    return dataclasses.replace(
        world, environment=dataclasses.replace(world.environment, failure_probability=0.3)
    )


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without_replay, "cannot be replayed"),
        (of_shorter_episodes, "ended where it had gone on"),
        (with_less_room, "no room left"),
        (with_faults, "broke when it was replayed"),
    ],
)
def test_a_partial_whose_environment_is_another_one_begins_again_and_is_counted(
    tmp_path: Path, change: Callable[[SimSettings], SimSettings], reason: str
) -> None:
    first = live(tmp_path / "a", stop_at_s=27.0)
    state = newest(tmp_path / "a")
    second = live(tmp_path / "b", world=change(WORLD), origin=state)
    summary = second.scheduler.summary()
    resumed = summary["resumed"]
    assert any(reason in known for known in resumed["reasons"]), resumed
    assert resumed["restarted"] == sum(resumed["reasons"].values()) > 0
    assert summary["tokens"]["discarded"] >= resumed["discarded_tokens"] > 0
    check_each_prompt_once(first, second, state, BASE)
    check_identity(state, second)
    assert replay(tmp_path / "b").violations == []


def test_an_environment_that_answers_otherwise_is_found_out(tmp_path: Path) -> None:
    live(tmp_path / "a", stop_at_s=27.0)
    state = newest(tmp_path / "a")
    contents = {
        trajectory: dataclasses.replace(
            saved,
            turns=tuple((s, "no" if s == "environment" else t) for s, t in saved.turns),
        )
        for trajectory, saved in state.contents.items()
    }
    second = live(tmp_path / "b", origin=dataclasses.replace(state, contents=contents))
    reasons = second.scheduler.summary()["resumed"]["reasons"]
    assert any("answered otherwise" in reason for reason in reasons)
    assert replay(tmp_path / "b").violations == []


def test_three_lives_train_each_prompt_once(tmp_path: Path) -> None:
    lives = []
    state: RunState | None = None
    for name, stop_at_s in (("a", 20.0), ("b", 12.0), ("c", None)):
        life = live(tmp_path / name, origin=state, stop_at_s=stop_at_s)
        lives.append(life)
        state = newest(tmp_path / name)
        assert replay(tmp_path / name).violations == []
    trained = Counter(sample.group for life in lives for sample in samples(life))
    assert set(trained.values()) == {BASE.group_size}
    assert lives[-1].trainer.version == BASE.steps


def test_a_stop_right_after_a_resume_keeps_what_has_not_been_replayed_yet(tmp_path: Path) -> None:
    live(tmp_path / "a", stop_at_s=27.0)
    state = newest(tmp_path / "a")
    slow = dataclasses.replace(
        WORLD, environment=dataclasses.replace(WORLD.environment, latency_s=500.0)
    )
    live(tmp_path / "b", world=slow, origin=state, stop_at_s=60.0)
    again = newest(tmp_path / "b")
    assert again.version == state.version
    assert again.contents == state.contents
    third = live(tmp_path / "c", origin=again)
    assert check_identity(state, third) > 0
    assert replay(tmp_path / "c").violations == []


def test_a_checkpoint_without_a_buffer_draws_its_pending_prompts_again(tmp_path: Path) -> None:
    first = live(tmp_path / "a", stop_at_s=27.0)
    state = newest(tmp_path / "a")
    assert state.buffer is not None
    residents = tuple(group.id for group in state.buffer.residents.groups)
    old = RunState(
        version=state.version,
        cursor=PromptCursor(next_position=state.cursor.next_position, pending=residents),
    )
    second = live(tmp_path / "b", origin=old)
    check_each_prompt_once(first, second, state, BASE)
    assert second.scheduler.summary()["resumed"]["partials"] == 0
    assert replay(tmp_path / "b").violations == []


def test_groups_of_another_size_are_given_up_and_their_prompts_drawn_again(tmp_path: Path) -> None:
    live(tmp_path / "a", stop_at_s=27.0)
    state = newest(tmp_path / "a")
    assert state.buffer is not None
    settings = dataclasses.replace(BASE, group_size=2)
    second = live(tmp_path / "b", settings, origin=state)
    resumed = second.scheduler.summary()["resumed"]
    assert resumed["given_up"] == len(state.buffer.residents.trajectories)
    assert resumed["reasons"] == {"its group has 3 members, not 2": resumed["given_up"]}
    trained = Counter(sample.group for sample in samples(second))
    assert {group.id for group in state.buffer.residents.groups} <= trained.keys()
    assert set(trained.values()) == {2}
    assert replay(tmp_path / "b").violations == []


def put_into_one_folder(tmp_path: Path) -> Path:
    """As a resumed run's folder has them."""
    (tmp_path / "a" / "events.jsonl").rename(tmp_path / "b" / "events.0.jsonl")
    return tmp_path / "b"


def test_the_replay_of_a_resumed_run_compares_its_buffer_with_the_life_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    live(tmp_path / "a", kill_at_s=24.5)
    live(tmp_path / "b", origin=newest(tmp_path / "a"))
    folder = put_into_one_folder(tmp_path)
    found = replay(folder)
    assert (found.violations, found.origin) == ([], "events.0.jsonl")
    assert replay_main(folder) == 0
    assert "bit for bit" in capsys.readouterr().out


def test_the_replay_finds_a_partial_that_lost_a_token_between_two_lives(tmp_path: Path) -> None:
    live(tmp_path / "a", stop_at_s=27.0)
    state = newest(tmp_path / "a")
    assert state.buffer is not None
    records = list(state.buffer.residents.trajectories)
    at = next(i for i, r in enumerate(records) if r.is_unfinished and r.num_sampled_tokens > 1)
    record = records[at]
    content = Content.restore(state.contents[record.id])
    if content.awaits_answer or content.loss_mask[-1] == 0:
        content.turns.pop()
        content.turn_ends.pop()
    last = record.spans[-1]
    for column in (content.token_ids, content.loss_mask, content.logprobs, content.versions):
        column.pop()
    records[at] = dataclasses.replace(
        record,
        spans=(*record.spans[:-1], dataclasses.replace(last, length=last.length - 1)),
        num_context_tokens=record.num_context_tokens - 1,
        digest=content.digest(),
    )
    residents = dataclasses.replace(state.buffer.residents, trajectories=tuple(records))
    lossy = dataclasses.replace(
        state,
        buffer=dataclasses.replace(state.buffer, residents=residents),
        contents={**state.contents, record.id: content.save(len(content), None)},
    )
    live(tmp_path / "b", origin=lossy)
    found = replay(put_into_one_folder(tmp_path))
    assert [v.invariant for v in found.violations] == ["fidelity"]
    assert "events.0.jsonl" in found.violations[0].message
