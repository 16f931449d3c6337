"""A swap of real vLLM and real DeepSpeed, broken where the real engines can be made to break.

Each case is one run of the real driver: a first swap goes well, the second is broken. The run must
fail closed with its cause, keep what was trained, balance its books, and leave no process.
"""

from __future__ import annotations

import signal
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from colocate.adapters.tokenizer import HuggingFaceTokenizer
from colocate.adapters.vllm.engine import VllmInference
from colocate.assembly import (
    Place,
    core_settings,
    make_model,
    make_ports,
    rollout_rules,
)
from colocate.checkpoints import FolderCheckpoints
from colocate.config import RunConfig
from colocate.core.phases import Phase
from colocate.core.scheduler import Scheduler
from colocate.core.swap import Outcome
from colocate.driver import Driver, Observer, Ports
from colocate.journal import JournalWriter
from colocate.ports import Publication
from colocate.preflight import validate
from colocate.replay import replay
from colocate.run_state import RunState
from tests.config.trees import with_values
from tests.faults import after, break_call, lies, signals
from tests.patience import patient
from tests.processes import running

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]


def configuration(**changes: Any) -> RunConfig:
    values = {
        "steps": 4,
        "model.dtype": "float32",
        "inference.kv_cache_memory_bytes": 64 * 2**20,
        "inference.sleep": 2,
        "inference.verify_every": 1,
        "rollout.max_turns": 3,
        "memory.remedy_after_s": 1.0,
        "supervision.start_timeout_s": patient(300),
        "supervision.phase_timeout_s": patient(60),
        "supervision.max_restarts": 0,
        **changes,
    }
    return validate(with_values(values))


class BrokenRun:
    """One run, up to its end; ``prepare`` breaks something of its ports."""

    def __init__(self, run_dir: Path, config: RunConfig) -> None:
        self.run_dir = run_dir
        self.config = config
        self.scheduler = Scheduler(core_settings(config))
        (run_dir / "logs").mkdir(parents=True)
        self.place = Place(
            run_dir=run_dir,
            model=make_model(config, run_dir),
            run_id=uuid.uuid4().hex[:12],
            device="cpu",
            socket_dir=run_dir,
        )
        self.tokenizer = HuggingFaceTokenizer(self.place.model)
        self.ports, self.probe = make_ports(config, self.place, self.tokenizer, None)
        self.seen: set[psutil.Process] = set()

    async def carry_out(self, observers: Sequence[Observer] = ()) -> Outcome:
        driver = Driver(
            self.scheduler,
            self.ports,
            rollout_rules(self.config, self.tokenizer),
            JournalWriter(self.run_dir / "events.jsonl"),
            observers,
            sample_interval_s=0.2,
        )
        return await driver.run(RunState())

    def note_processes(self) -> None:
        ports = (self.ports.inference, self.ports.trainer)
        self.seen |= {psutil.Process(pid) for port in ports for pid in port.process_ids()}


async def run_broken(
    run_dir: Path, prepare: Callable[[Ports], None], **changes: Any
) -> tuple[BrokenRun, str]:
    run = BrokenRun(run_dir, configuration(**changes))
    break_call(run.ports.inference, "park", _noting(run), when=lambda: True)
    prepare(run.ports)
    outcome = await run.carry_out()
    run.probe.release()
    assert outcome.status == "failed"
    assert run.scheduler.books.steps >= 1, "the first swap went well"
    assert run.seen
    assert running(run.seen, patient(10)) == []
    assert replay(run_dir).violations == []
    return run, str(outcome.error)


def _noting(run: BrokenRun) -> Callable[..., Any]:
    async def note_and_go_on(intact: Callable[..., Any]) -> None:
        run.note_processes()
        await intact()

    return note_and_go_on


def saved_versions(run: BrokenRun) -> list[str]:
    assert isinstance(run.ports.checkpoints, FolderCheckpoints)
    folder = run.run_dir / "checkpoints"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


async def test_an_engine_killed_as_it_falls_asleep_ends_the_run_and_what_was_trained_is_kept(
    tmp_path: Path,
) -> None:
    def prepare(ports: Ports) -> None:
        strike = signals(ports.inference.process_ids, signal.SIGKILL)
        break_call(ports.inference, "sleep", strike, when=after(1))

    run, error = await run_broken(tmp_path / "run", prepare)
    assert "vLLM's engine died" in error
    assert "SIGKILL" in error
    assert saved_versions(run) == ["step_000001"]


async def test_an_engine_stopped_as_it_wakes_ends_the_run_at_the_deadline_of_the_phase(
    tmp_path: Path,
) -> None:
    def prepare(ports: Ports) -> None:
        strike = signals(ports.inference.process_ids, signal.SIGSTOP)
        break_call(ports.inference, "wake", strike, when=after(3))

    run, error = await run_broken(
        tmp_path / "run", prepare, **{"supervision.phase_timeout_s": patient(15)}
    )
    assert f"{Phase.KV_WAKING} has not ended by its deadline" in error
    assert "engine awake" in error
    assert saved_versions(run) == ["step_000002"]


async def test_a_rank_killed_in_the_middle_of_training_ends_the_run_with_its_name(
    tmp_path: Path,
) -> None:
    def prepare(ports: Ports) -> None:
        strike = signals(ports.trainer.process_ids, signal.SIGKILL)
        break_call(ports.trainer, "train", strike, when=after(1))

    run, error = await run_broken(tmp_path / "run", prepare)
    assert "rank 0" in error
    assert "SIGKILL" in error
    assert saved_versions(run) == [], "nobody knows the state of a trainer that was at work"


async def test_a_rank_killed_while_weights_stream_leaves_an_engine_that_serves_nothing(
    tmp_path: Path,
) -> None:
    refused: list[str] = []

    def prepare(ports: Ports) -> None:
        inference, trainer = ports.inference, ports.trainer
        assert isinstance(inference, VllmInference)
        strike = signals(trainer.process_ids, signal.SIGKILL)
        break_call(inference, "load_bucket", strike, when=after(1))

        async def note_and_close(intact: Callable[..., Any]) -> None:
            refused.append(str(inference.weights_version))
            await intact()

        break_call(inference, "close", note_and_close)

    _, error = await run_broken(
        tmp_path / "run", prepare, **{"trainer.publish_bucket_bytes": 2**18}
    )
    assert "rank 0" in error
    assert refused == ["None"], "half of a set is no version's"


async def test_a_rank_stopped_before_it_offloads_ends_the_run_at_the_deadline_of_the_phase(
    tmp_path: Path,
) -> None:
    def prepare(ports: Ports) -> None:
        strike = signals(ports.trainer.process_ids, signal.SIGSTOP)
        break_call(ports.transfer, "expect", strike, when=after(1))

    _, error = await run_broken(
        tmp_path / "run", prepare, **{"supervision.phase_timeout_s": patient(15)}
    )
    assert f"{Phase.TRAINER_OFFLOADING} has not ended by its deadline" in error


async def test_a_sleep_that_only_says_so_is_found_out_by_the_memory_of_the_processes(
    tmp_path: Path,
) -> None:
    def prepare(ports: Ports) -> None:
        break_call(ports.inference, "sleep", lies(), when=after(1))

    run, error = await run_broken(
        tmp_path / "run", prepare, **{"supervision.phase_timeout_s": patient(15)}
    )
    assert "the engine to give up kv_cache" in error
    assert "tried: collect" in error
    assert saved_versions(run) == ["step_000001"]


async def test_a_publication_that_only_says_so_is_found_out_when_it_is_verified(
    tmp_path: Path,
) -> None:
    """The engine slept lightly, so that it has weights to answer with: the old ones."""

    def prepare(ports: Ports) -> None:
        def published(version: Any) -> Publication:
            return Publication(version=version, num_tensors=1, num_bytes=1)

        break_call(ports.transfer, "publish", lies(published), when=after(1))

    run, error = await run_broken(
        tmp_path / "run",
        prepare,
        **{"inference.sleep": "kv"},
    )
    assert "verify: the engine holds version 1, but the trainer scored 2" in error
    assert saved_versions(run) == ["step_000002"]
