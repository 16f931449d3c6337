"""Real vLLM and real DeepSpeed, a process of which is lost in a phase: the run goes on.

The matrix in full is held over simulated ports (``tests/sim/test_crash_matrix.py``). Here one case
each of an engine and of a rank is a part of every run of the tests, and the rest of them nightly.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from colocate.core.actions import Action
from colocate.core.events import Event
from colocate.core.phases import Phase
from colocate.core.scheduler import Scheduler
from colocate.ports import Inference, Trainer
from colocate.replay import replay
from tests.engine.test_broken_swaps import BrokenRun, configuration
from tests.patience import patient
from tests.processes import running

pytestmark = [pytest.mark.engine, pytest.mark.timeout(1800)]

STEPS = 4


class Blow:
    """Sends a signal to the processes of a port when the run has entered a phase, once."""

    def __init__(self, run: BrokenRun, port: Inference | Trainer, number: int, phase: Phase):
        self._run = run
        self._port = port
        self._number = number
        self._phase = phase
        self.victims: list[int] = []

    def on_event(self, event: Event, actions: Sequence[Action], scheduler: Scheduler) -> None:
        if scheduler.phase is not self._phase or scheduler.books.swaps < 1 or self.victims:
            return
        self._run.note_processes()
        self.victims = list(self._port.process_ids())
        # A call of the phase is under way then.
        asyncio.get_running_loop().call_later(0.02, self._strike)

    def _strike(self) -> None:
        for pid in self.victims:
            os.kill(pid, self._number)

    def on_progress(self, what: str) -> None: ...

    def on_step(self, *_: Any) -> None: ...

    def on_memory(self, *_: Any) -> None: ...

    def on_telemetry(self, *_: Any) -> None: ...


async def crash(run_dir: Path, process: str, number: int, phase: Phase) -> dict[str, Any]:
    """One run to its end; returns the section ``recoveries`` of its summary."""
    deadlines = {}
    if number == signal.SIGSTOP:
        deadlines = {
            "supervision.phase_timeout_s": patient(15),
            "supervision.training_timeout_s": patient(15),
            "supervision.idle_timeout_s": patient(15),
        }
    values = {
        "steps": STEPS,
        "checkpoint.every_steps": 1,
        "supervision.max_restarts": 2,
        "supervision.restart_window_s": 1e6,
        **deadlines,
    }
    run = BrokenRun(run_dir, configuration(**values))
    port = run.ports.inference if process == "engine" else run.ports.trainer
    blow = Blow(run, port, number, phase)
    outcome = await run.carry_out([blow])
    run.probe.release()
    assert blow.victims
    assert outcome.status == "completed", outcome.error
    summary = run.scheduler.summary()
    assert summary["steps"] == STEPS
    assert summary["versions"] == {"trainer": STEPS, "engine": STEPS}
    tokens = summary["tokens"]
    resident = sum(t.num_sampled_tokens for t in run.scheduler.buffer)
    assert tokens["generated"] == tokens["trained"] + tokens["discarded"] + resident
    assert replay(run_dir).violations == []
    assert running(run.seen, patient(10)) == []
    recoveries: dict[str, Any] = summary["recoveries"]
    return recoveries


async def test_an_engine_that_is_killed_in_the_rollout_is_replaced_and_nothing_is_abandoned(
    tmp_path: Path,
) -> None:
    recoveries = await crash(tmp_path / "run", "engine", signal.SIGKILL, Phase.ROLLOUT)
    assert (recoveries["engine"], recoveries["trainer"]) == (1, 0)
    assert "SIGKILL" in next(iter(recoveries["causes"]))
    assert recoveries["abandoned"] == {"steps": 0, "trajectories": 0, "tokens": 0}


async def test_a_rank_that_is_killed_in_training_takes_the_run_back_to_its_checkpoint(
    tmp_path: Path,
) -> None:
    recoveries = await crash(tmp_path / "run", "rank", signal.SIGKILL, Phase.TRAINING)
    assert (recoveries["engine"], recoveries["trainer"]) == (0, 1)
    assert "SIGKILL" in next(iter(recoveries["causes"]))
    assert recoveries["rollbacks"] == 1
    assert recoveries["abandoned"]["steps"] == 0, "the step before is in the checkpoint"


ENGINE_PHASES = (
    Phase.PARKING,
    Phase.SLEEPING,
    Phase.TRAINING,
    Phase.WEIGHTS_WAKING,
    Phase.PUBLISHING,
    Phase.KV_WAKING,
)
RANK_PHASES = (
    Phase.ROLLOUT,
    Phase.TRAINER_WAKING,
    Phase.TRAINER_OFFLOADING,
    Phase.PUBLISHING,
)


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("process", "number", "phase"),
    [
        *(("engine", signal.SIGKILL, phase) for phase in ENGINE_PHASES),
        *(("rank", signal.SIGKILL, phase) for phase in RANK_PHASES),
        ("engine", signal.SIGTERM, Phase.ROLLOUT),
        ("engine", signal.SIGSTOP, Phase.ROLLOUT),
        ("engine", signal.SIGSTOP, Phase.PUBLISHING),
        ("rank", signal.SIGTERM, Phase.TRAINING),
        ("rank", signal.SIGSTOP, Phase.TRAINING),
        ("rank", signal.SIGSTOP, Phase.PUBLISHING),
    ],
)
async def test_a_run_goes_on_whatever_is_lost_in_whatever_phase(
    tmp_path: Path, process: str, number: int, phase: Phase
) -> None:
    recoveries = await crash(tmp_path / "run", process, number, phase)
    assert recoveries["engine"] + recoveries["trainer"] >= 1
