"""The composition root: one configuration, one run, one exit status."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from colocate.adapters.tokenizer import HuggingFaceTokenizer
from colocate.assembly import (
    Place,
    core_settings,
    make_evaluation,
    make_model,
    make_ports,
    make_run_data,
    rollout_rules,
    settings_with,
)
from colocate.checkpoints import CheckpointError, find_checkpoint, read_state, set_aside
from colocate.config import RunConfig
from colocate.core.evaluation_tally import first_last_best
from colocate.core.scheduler import Scheduler
from colocate.core.swap import Outcome
from colocate.core.types import Version
from colocate.driver import Driver
from colocate.journal import JournalWriter
from colocate.loggers.factory import make_loggers
from colocate.loggers.group import CLOSE_PATIENCE_S
from colocate.machine import resolve_device, software_versions
from colocate.recorder import Recorder
from colocate.report.display import RunDisplay, make_display
from colocate.report.ending import render_ending
from colocate.report.live_file import NAME as LIVE_FILE
from colocate.report.live_file import Both, LiveFile
from colocate.report.records import EVALUATIONS, keep_steps, read_evaluations, write_summary
from colocate.report.run_report import write_run_report
from colocate.report.transcripts import TRANSCRIPTS, keep_transcripts
from colocate.run_state import RunState
from colocate.supervision.guard import RunGuard
from colocate.supervision.run_lock import RunFolderBusyError, RunLock
from colocate.supervision.signals import StopSignals

logger = logging.getLogger(__name__)

SUMMARY_SCHEMA = 1


def run(config: RunConfig, run_dir: Path) -> int:
    """Carries out one run in its folder and returns the command's exit status.

    0 done; 1 failed; 2 a folder or checkpoint that cannot be used; 130 or 143 after a signal.
    ``summary.json`` is written in every case but 2.
    """
    run_dir = run_dir.absolute()
    run_dir.mkdir(parents=True, exist_ok=True)
    try:
        with RunLock(run_dir):
            checkpoint = find_checkpoint(config.resume, run_dir)
            origin = RunState() if checkpoint is None else read_state(checkpoint)
            _make_room(run_dir, config.resume)
            return _run_locked(config, run_dir, checkpoint, origin)
    except (RunFolderBusyError, CheckpointError, FileExistsError) as error:
        print(f"colocate train: {error}", file=sys.stderr)
        return 2


def _make_room(run_dir: Path, resume: str) -> None:
    """Puts journal and summary of an earlier life aside; refuses to overwrite another run's.

    Raises:
        FileExistsError: the folder holds a run that is not to be resumed.
    """
    journal = run_dir / "events.jsonl"
    if not journal.exists():
        return
    if resume == "never":
        raise FileExistsError(
            f"{run_dir} holds a run already. Take another folder (hydra.run.dir=PATH), or go on "
            "with that run (resume=auto)"
        )
    life = len(list(run_dir.glob("events.*.jsonl")))
    for path in (journal, run_dir / "summary.json"):
        if path.exists():
            path.rename(path.with_suffix(f".{life}{path.suffix}"))


def _run_locked(
    config: RunConfig,
    run_dir: Path,
    checkpoint: Path | None,
    origin: RunState,
) -> int:
    run_id = uuid.uuid4().hex[:12]
    (run_dir / "logs").mkdir(exist_ok=True)
    handler = logging.FileHandler(run_dir / "logs" / "colocate.log")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    logging.getLogger("colocate").addHandler(handler)
    display = Both(
        make_display(config.logger.display, title="colocate"), LiveFile(run_dir / LIVE_FILE)
    )
    socket_dir = Path(tempfile.mkdtemp(prefix=f"colocate-{run_id}-"))
    guard = RunGuard(
        run_id, f"colocate-{run_id}", socket_dir, log_path=run_dir / "logs" / "reaper.log"
    )

    def prepare() -> Place:
        display.starting("preparing the model")
        return Place(
            run_dir=run_dir,
            model=make_model(config, run_dir),
            run_id=run_id,
            device=resolve_device(config.device, os.environ),
            socket_dir=socket_dir,
        )

    try:
        with guard:
            started = _Run(config, run_dir, run_id, display, checkpoint, origin)
            return asyncio.run(started.carry_out(prepare))
    finally:
        display.close()
        logging.getLogger("colocate").removeHandler(handler)
        handler.close()


class _Run:
    """What one run needs to its end, and what it leaves when it is over."""

    def __init__(
        self,
        config: RunConfig,
        run_dir: Path,
        run_id: str,
        display: RunDisplay,
        checkpoint: Path | None,
        origin: RunState,
    ) -> None:
        self._config = config
        self._run_dir = run_dir
        self._run_id = run_id
        self._display = display
        self._checkpoint = checkpoint
        self._data_facts: Mapping[str, Any] = {}
        for name in ("metrics.jsonl", EVALUATIONS):
            keep_steps(run_dir / name, up_to=origin.version)
        keep_transcripts(run_dir / TRANSCRIPTS, up_to=origin.version)
        set_aside(run_dir / "checkpoints", after=origin.version)
        evaluated = read_evaluations(run_dir)
        last = Version(evaluated[-1]["step"]) if evaluated else None
        self._origin = replace(origin, evaluated=last)
        self._loggers = make_loggers(config, run_dir)
        self._recorder = Recorder(config, run_dir, display, self._loggers)

    async def carry_out(self, prepare: Callable[[], Place]) -> int:
        """Runs, and leaves a summary whatever happens."""
        began_s = time.monotonic()
        settings = core_settings(self._config)
        scheduler, provider = Scheduler(settings), "none"
        try:
            place = prepare()
            tokenizer = HuggingFaceTokenizer(place.model)
            data = make_run_data(self._config, tokenizer)
            self._data_facts = data.facts
            rules = rollout_rules(self._config, tokenizer)
            evaluation = make_evaluation(
                self._config, data, rules, max_episodes=settings.max_resident
            )
            num_samples = 0 if evaluation is None else evaluation.num_samples
            scheduler = Scheduler(settings_with(settings, self._config.eval, num_samples))
            ports, probe = make_ports(
                self._config, place, tokenizer, self._checkpoint, data.prompts
            )
            provider = probe.provider
            driver = Driver(
                scheduler,
                ports,
                rules,
                JournalWriter(self._run_dir / "events.jsonl"),
                [self._recorder],
                evaluation=evaluation,
                sample_interval_s=self._config.memory.sample_interval_s,
                telemetry_interval_s=self._config.memory.telemetry_interval_s,
            )
            try:
                with StopSignals(driver.request_stop):
                    outcome = await driver.run(self._origin)
            finally:
                probe.release()
                if ports.reward is not None:
                    await ports.reward.close()
        except Exception as error:
            logger.exception("the run broke")
            while isinstance(error, ExceptionGroup):
                error = error.exceptions[0]
            text = " ".join(str(error).split())
            outcome = Outcome(status="failed", error=f"{type(error).__name__}: {text}")
        finally:
            self._recorder.close()
        # At once, as trackers may have much to send yet, and somebody may lose patience.
        summary = self._summarize(outcome, scheduler, provider, began_s)
        write_summary(self._run_dir / "summary.json", summary)
        succeeded = outcome.status == "completed"
        patience_s = CLOSE_PATIENCE_S if succeeded else self._config.supervision.grace_s
        await asyncio.to_thread(self._loggers.close, succeeded=succeeded, patience_s=patience_s)
        self._leave(self._summarize(outcome, scheduler, provider, began_s))
        return _exit_status(outcome)

    def _summarize(
        self, outcome: Outcome, scheduler: Scheduler, provider: str, began_s: float
    ) -> dict[str, Any]:
        summary = scheduler.summary()
        summary["memory"] = {"provider": provider, **summary["memory"]}
        summary["warnings"] += self._loggers.warnings
        if summary["eval"] is not None:
            summary["eval"] |= first_last_best(read_evaluations(self._run_dir))
        return {
            "schema": SUMMARY_SCHEMA,
            "status": outcome.status,
            "error": outcome.error,
            "run_id": self._run_id,
            "software": software_versions(),
            "data": dict(self._data_facts),
            "loggers": self._loggers.summary(),
            "wall_s": round(time.monotonic() - began_s, 3),
            **summary,
        }

    def _leave(self, summary: dict[str, Any]) -> None:
        run_dir = self._run_dir
        write_summary(run_dir / "summary.json", summary)
        try:
            write_run_report(run_dir)
        except Exception:
            # The results are written; a page that cannot be made must not hide them.
            logger.exception("the report could not be written; `colocate report` tries again")
        self._display.finished(
            render_ending(summary, run_dir, before=self._recorder.first, after=self._recorder.last)
        )


def _exit_status(outcome: Outcome) -> int:
    if outcome.status == "stopped":
        return 128 + (outcome.signal or 0)
    return 0 if outcome.status == "completed" else 1
