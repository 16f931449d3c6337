"""The crash matrix: each process, lost in each way, in each phase; the table in the documents."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from colocate.core import actions as act
from colocate.core.actions import Action
from colocate.core.events import Event
from colocate.core.phases import ENDS, Phase
from colocate.core.scheduler import Scheduler
from colocate.core.settings import Settings
from colocate.core.swap import Outcome
from colocate.core.types import Version
from colocate.journal import read_journal
from colocate.ports import EngineLostError, Trainer, TrainerLostError
from colocate.replay import replay
from colocate.report.ending import run_facts
from colocate.report.history import read_history
from colocate.run_state import RunState
from colocate.sim.clock import VirtualLoop, run_virtual
from colocate.sim.ports import SimTrainer, sim_folder
from colocate.sim.run import SimSettings, Simulation
from tests.mortality import Mortal
from tests.sim.test_resumed_runs import WORLD, FileCheckpoints

DOCUMENT = Path(__file__).parents[2] / "docs" / "reliability.md"

SETTINGS = Settings(
    steps=6,
    group_size=3,
    groups_per_step=2,
    max_staleness=2,
    checkpoint_every_steps=2,
    sleep="2",
    verify_every=1,
    max_restarts=3,
)

PHASES = [phase for phase in Phase if phase not in (*ENDS, Phase.CLOSING)]
PROCESSES = ("engine", "rank", "driver")
SIGNALS = ("SIGKILL", "SIGTERM", "SIGSTOP")
CELLS = [(p, s, phase) for p in PROCESSES for s in SIGNALS for phase in PHASES]

MOMENT_S = 0.005
"""After a phase has begun: a call of it is under way, and none is as short; but for PARKING, which
the simulated engine ends at once."""


class SlowCheckpoints(FileCheckpoints):
    """The trainer has a part in them, and may be lost in it."""

    async def save(self, trainer: Trainer, state: RunState) -> None:
        await trainer.save(sim_folder(state.version))
        await super().save(trainer, state)

    async def restore(self, trainer: SimTrainer, version: int) -> None:
        assert await trainer.restore(sim_folder(Version(version))) == version


class Killed(Exception):
    """The driver is gone, and nothing was told to end."""


@dataclasses.dataclass
class Blow:
    """Strikes once, a moment after the run has entered a phase; of a swap, the second one's."""

    simulation: Simulation
    phase: Phase
    process: str
    signal: str
    killed: asyncio.Future[None]
    engine: Mortal = dataclasses.field(init=False)
    trainer: Mortal = dataclasses.field(init=False)
    has_struck: bool = False
    struck_in: Phase | None = None

    def __post_init__(self) -> None:
        self.engine = Mortal(self.simulation.inference, EngineLostError, "the engine")
        self.trainer = Mortal(self.simulation.trainer, TrainerLostError, "trainer rank 0")

    def on_event(self, event: Event, actions: Sequence[Action], scheduler: Scheduler) -> None:
        is_second = scheduler.books.swaps >= 1 or self.phase is Phase.STARTING
        if scheduler.phase is self.phase and is_second and not self.has_struck:
            self.has_struck = True
            after_s = 0.0 if self.phase is Phase.PARKING else MOMENT_S
            asyncio.get_running_loop().call_later(after_s, self.strike)

    def strike(self) -> None:
        self.struck_in = self.simulation.scheduler.phase
        if self.process == "driver":
            self._strike_driver()
            return
        mortal = self.engine if self.process == "engine" else self.trainer
        mortal.strike("hangs" if self.signal == "SIGSTOP" else "dies")

    def _strike_driver(self) -> None:
        loop = asyncio.get_running_loop()
        match self.signal:
            case "SIGKILL":
                self.killed.set_exception(Killed())
            case "SIGTERM":
                self.simulation.driver.request_stop(15)
            case _:
                # Everybody else has gone on meanwhile; every deadline has passed when it wakes.
                assert isinstance(loop, VirtualLoop)
                loop.stand_still(2 * SETTINGS.start_timeout_s)

    def on_progress(self, what: str) -> None: ...

    def on_step(self, *_: Any) -> None: ...

    def on_memory(self, *_: Any) -> None: ...

    def on_telemetry(self, *_: Any) -> None: ...


def live(
    run_dir: Path, *, origin: RunState | None = None, blow: tuple[str, str, Phase] | None = None
) -> tuple[Simulation, Outcome | None, Blow | None]:
    """One life; it has no outcome, and leaves no summary, where the driver was killed."""
    (run_dir / "checkpoints").mkdir(parents=True)
    observers: list[Any] = []
    struck: Blow | None = None
    simulation: Simulation | None = None

    async def main() -> Outcome:
        nonlocal simulation, struck
        simulation = Simulation(SETTINGS, WORLD, run_dir / "events.jsonl", observers)
        simulation.replace_ports(checkpoints=SlowCheckpoints(run_dir / "checkpoints"))
        killed = asyncio.get_running_loop().create_future()
        if blow is not None:
            process, signal, phase = blow
            struck = Blow(simulation, phase, process, signal, killed)
            observers.append(struck)
        running = asyncio.ensure_future(simulation.run(origin or RunState()))
        await asyncio.wait({running, killed}, return_when=asyncio.FIRST_COMPLETED)
        if killed.done():
            killed.result()
        return await running

    outcome = None
    with contextlib.suppress(Killed):
        outcome = run_virtual(main())
    assert simulation is not None
    if outcome is not None:
        (run_dir / "summary.json").write_text(json.dumps(simulation.scheduler.summary()))
    return simulation, outcome, struck


def checked(run_dir: Path, outcome: Outcome | None) -> None:
    """Its journal replays, its books balance, and its summary says the same."""
    found = replay(run_dir)
    assert found.violations == []
    assert found.is_whole is (outcome is not None)


def end_of(tmp_path: Path, process: str, signal: str, phase: Phase) -> str:
    """What becomes of a run: the cell of the table. All that can be checked is checked."""
    simulation, outcome, blow = live(tmp_path / "a", blow=(process, signal, phase))
    assert blow is not None
    assert blow.struck_in is phase
    checked(tmp_path / "a", outcome)
    if outcome is not None and outcome.status == "completed":
        return _went_on(tmp_path / "a", simulation, blow)
    if outcome is not None:
        assert (outcome.status, outcome.signal) == ("stopped", 15), outcome.error
    states = sorted((tmp_path / "a" / "checkpoints").iterdir())
    origin = FileCheckpoints(tmp_path / "a" / "checkpoints").newest() if states else RunState()
    second, outcome, _ = live(tmp_path / "b", origin=origin)
    assert outcome is not None
    assert outcome.status == "completed", outcome.error
    checked(tmp_path / "b", outcome)
    assert origin.version + second.scheduler.books.steps == SETTINGS.steps
    return "resumed"


def _went_on(run_dir: Path, simulation: Simulation, blow: Blow) -> str:
    summary = simulation.scheduler.summary()
    recoveries = summary["recoveries"]
    assert summary["steps"] == summary["versions"]["trainer"] == SETTINGS.steps
    assert summary["versions"]["engine"] == SETTINGS.steps
    assert not any(environment.is_open for environment in simulation.environments)
    tokens = summary["tokens"]
    resident = sum(t.num_sampled_tokens for t in simulation.scheduler.buffer)
    assert tokens["generated"] == tokens["trained"] + tokens["discarded"] + resident
    actions = [a for e in read_journal(run_dir / "events.jsonl") for a in e.actions]
    back = [a for a in actions if isinstance(a, act.RollBack)]
    assert len(back) == recoveries["rollbacks"]
    assert recoveries["abandoned"]["steps"] == sum(a.steps for a in back)
    num_steps = sum(isinstance(a, act.Train) for a in actions)
    assert num_steps >= SETTINGS.steps + recoveries["abandoned"]["steps"]
    if blow.process != "driver":
        assert recoveries["engine"] + recoveries["trainer"] >= 1
    return "went back and on" if back else "went on"


def table(cells: dict[tuple[str, str, Phase], str]) -> str:
    """Markdown, as it stands in the document."""
    heads = [f"{process} {signal}" for process in PROCESSES for signal in SIGNALS]
    rows = [f"| phase | {' | '.join(heads)} |", f"|---|{'---|' * len(heads)}"]
    for phase in PHASES:
        ends = [cells[p, s, phase] for p in PROCESSES for s in SIGNALS]
        rows.append(f"| {phase.upper()} | {' | '.join(ends)} |")
    return "\n".join(rows) + "\n"


def documented() -> dict[tuple[str, str, Phase], str]:
    """The cells of the table that stands in the document."""
    text = DOCUMENT.read_text()
    found = re.search(r"<!-- begin crashes[^>]*-->\n(.*?)<!-- end crashes -->", text, re.DOTALL)
    assert found is not None
    cells: dict[tuple[str, str, Phase], str] = {}
    columns = [(process, signal) for process in PROCESSES for signal in SIGNALS]
    for row in found[1].splitlines()[2:]:
        name, *ends = (cell.strip() for cell in row.strip("|").split("|"))
        for (process, signal), end in zip(columns, ends, strict=True):
            cells[process, signal, Phase(name.lower())] = end
    assert table(cells) == found[1]
    return cells


@pytest.mark.parametrize(("process", "signal", "phase"), CELLS)
def test_every_cell_of_the_crash_matrix_ends_as_the_document_says(
    tmp_path: Path, process: str, signal: str, phase: Phase
) -> None:
    assert end_of(tmp_path, process, signal, phase) == documented()[process, signal, phase]


def test_the_table_has_every_cell_and_no_other_end() -> None:
    cells = documented()
    assert set(cells) == set(CELLS)
    assert set(cells.values()) <= {"went on", "went back and on", "resumed"}


def test_a_report_of_a_run_that_went_back_tells_of_the_loss_and_of_what_was_abandoned(
    tmp_path: Path,
) -> None:
    simulation, _, _ = live(tmp_path / "a", blow=("rank", "SIGKILL", Phase.TRAINING))
    history = read_history(read_journal(tmp_path / "a" / "events.jsonl"))
    abandoned = [each for each in history.endings if each.ending == "abandoned"]
    assert abandoned
    kinds = {kind: text for _, kind, text in history.notices}
    assert "trainer rank 0 died" in kinds["trainer lost"]
    assert "the run goes back to version" in kinds["warning"]
    summary = simulation.scheduler.summary()
    facts = dict(run_facts(summary, []))
    assert facts["started anew"].startswith("DeepSpeed 1 time; ")
    assert "most often: trainer: TrainerLostError: trainer rank 0 died" in facts["started anew"]


def test_both_lost_at_once_is_a_rollback(tmp_path: Path) -> None:
    def strike_both(self: Blow) -> None:
        self.struck_in = self.simulation.scheduler.phase
        self.engine.strike("dies")
        self.trainer.strike("dies")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Blow, "strike", strike_both)
        end = end_of(tmp_path, "engine", "SIGKILL", Phase.ROLLOUT)
    assert end == "went back and on"


def test_an_engine_that_dies_whenever_it_is_started_ends_the_run_with_the_cause(
    tmp_path: Path,
) -> None:
    async def main() -> tuple[Simulation, Outcome]:
        simulation = Simulation(SETTINGS, SimSettings(), tmp_path / "events.jsonl")

        async def killed() -> None:
            await asyncio.sleep(1.0)
            raise EngineLostError("the engine was killed as it started")

        simulation.inference.start = killed  # type: ignore[method-assign]
        return simulation, await simulation.run()

    simulation, outcome = run_virtual(main())
    assert outcome.status == "failed"
    assert outcome.error is not None
    assert "the engine was killed as it started" in outcome.error
    assert "supervision.max_restarts is 3" in outcome.error
    assert simulation.scheduler.summary()["recoveries"]["engine"] == 3
    assert replay(tmp_path).violations == []
