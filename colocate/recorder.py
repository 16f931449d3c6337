"""Looks on while a run goes on: metrics, trace, samples of trajectories, and the display."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from colocate.config import RunConfig
from colocate.core import actions as act
from colocate.core import events as ev
from colocate.core.phases import Phase
from colocate.core.scheduler import Scheduler
from colocate.core.trajectory import State
from colocate.core.types import MemorySample
from colocate.loggers.group import LoggerGroup
from colocate.loggers.names import of_evaluation, of_memory, of_step, of_swap
from colocate.ports import StepReport, TrainingBatch, TrainingSample
from colocate.report.display import RunDisplay
from colocate.report.records import EVALUATIONS, MetricsWriter, keep_steps
from colocate.report.snapshot import RunSnapshot
from colocate.report.trace import TraceWriter
from colocate.report.transcripts import (
    TRANSCRIPTS,
    TextSpan,
    TrajectorySample,
    Turn,
    format_transcript,
    keep_transcripts,
    write_transcripts,
)
from colocate.rollout.floor import Floor

REFRESH_S = 0.25
NUM_RECENT = 60

_STATE_NAMES = {
    State.QUEUED: "queued",
    State.GENERATING: "generating",
    State.ACTING: "environment",
    State.FINISHED: "finished",
    State.LEASED: "leased",
}


class Recorder:
    """An observer of the driver. ``first`` and ``last`` are transcripts to show at the end."""

    def __init__(
        self, config: RunConfig, run_dir: Path, display: RunDisplay, loggers: LoggerGroup
    ) -> None:
        self._loggers = loggers
        self._config = config
        self._run_dir = run_dir
        self._display = display
        self._metrics_path = run_dir / "metrics.jsonl"
        self._metrics = MetricsWriter(self._metrics_path)
        self._evaluations: MetricsWriter | None = None
        self._evaluated: dict[str, float] = {}
        self._trace = TraceWriter(run_dir / "trace.json")
        self._phase = Phase.STARTING
        self._phase_since_s = 0.0
        self._shown_s = 0.0
        self._requests: dict[str, float] = {}
        self._memory: MemorySample | None = None
        self._lags: dict[int, int] = {}
        self._num_costs, self._costs_s = 0, 0.0  # of swaps
        self._last_cost_s: float | None = None
        self._reward_parts: dict[str, float] = {}
        self._spares: Counter[str] = Counter()
        self._first_step_s: float | None = None
        self.first: str | None = None
        self.last: str | None = None

    def on_progress(self, what: str) -> None:
        self._display.starting(what)

    def on_event(
        self, event: ev.Event, actions: Sequence[act.Action], scheduler: Scheduler
    ) -> None:
        self._trace_event(event, actions)
        changed = scheduler.phase is not self._phase
        if changed:
            self._trace.phase(str(self._phase), self._phase_since_s, event.time_s)
            self._phase, self._phase_since_s = scheduler.phase, event.time_s
        if isinstance(event, ev.BatchTrained) and actions:
            self._write_metrics(event, scheduler)
            if self._memory is not None:
                self._loggers.log(event.version, of_memory(self._memory))
        for action in actions:
            if isinstance(action, act.CloseSwap):
                self._loggers.log(action.version, of_swap(action))
                if action.cost_s is not None:
                    self._num_costs += 1
                    self._costs_s += action.cost_s
                    self._last_cost_s = action.cost_s
            if isinstance(action, act.RollBack):
                self._go_back(action, scheduler)
        if isinstance(event, ev.EvaluationEnded):
            self._write_evaluation(event, scheduler)
        if changed or event.time_s - self._shown_s >= REFRESH_S:
            self._shown_s = event.time_s
            # Of a run that begins there is nothing to show; one that lost a process has begun.
            if self._phase is not Phase.STARTING or scheduler.swapper.incarnation:
                self._display.update(self._snapshot(event.time_s, scheduler))

    def on_step(self, batch: TrainingBatch, report: StepReport, floor: Floor) -> None:
        lags = Counter(
            batch.version - version
            for sample in batch.samples
            if sample.origin is None
            for version, bears in zip(sample.versions, sample.loss_mask, strict=True)
            if bears
        )
        self._lags = dict(lags)
        self._reward_parts = _mean_parts(
            [
                floor.contents[sample.trajectory].reward_parts
                for sample in batch.samples
                if sample.origin is None
            ]
        )
        samples = self._choose(batch)
        if not samples:
            return
        kept = [_keep(sample, report.version, floor) for sample in samples]
        write_transcripts(self._run_dir / TRANSCRIPTS, report.version, kept)
        # The first of the chosen is the most typical.
        self.last = format_transcript(kept[0])
        self.first = self.first or self.last

    def on_memory(self, time_s: float, sample: MemorySample) -> None:
        self._memory = sample
        self._trace.memory(time_s, sample)

    def on_telemetry(self, time_s: float, values: Mapping[str, float]) -> None:
        self._trace.telemetry(time_s, values)

    def close(self) -> None:
        self._metrics.close()
        if self._evaluations is not None:
            self._evaluations.close()
        self._trace.close()

    def _choose(self, batch: TrainingBatch) -> list[TrainingSample]:
        """Samples to keep: that whose reward is nearest to the step's mean, the best, the worst,
        then others near to the mean.

        What is replayed was to be seen when it was trained first.
        """
        own = [sample for sample in batch.samples if sample.origin is None]
        if not own:
            return []
        count = self._config.logger.transcripts_per_step
        mean = sum(s.reward for s in own) / len(own)
        typical = sorted(own, key=lambda s: abs(s.reward - mean))
        told = [typical[0], max(own, key=lambda s: s.reward), min(own, key=lambda s: s.reward)]
        by_id = {sample.trajectory: sample for sample in (*told, *typical)}
        return list(by_id.values())[:count]

    def _trace_event(self, event: ev.Event, actions: Sequence[act.Action]) -> None:
        for action in actions:
            if isinstance(action, act.SubmitRequest | act.SubmitEvaluation):
                self._requests[action.request] = event.time_s
        match event:
            case ev.RequestEnded():
                began_s = self._requests.pop(event.request)
                self._trace.request(
                    event.trajectory,
                    began_s,
                    event.time_s,
                    {
                        "request": event.request,
                        "tokens": sum(s.length for s in event.spans),
                        "finish": str(event.finish_reason),
                    },
                )
            case ev.EvaluationRequestEnded():
                self._trace.request(
                    -1 - event.sample,
                    self._requests.pop(event.request),
                    event.time_s,
                    {"request": event.request, "tokens": sum(s.length for s in event.spans)},
                )
            case ev.TurnReady() | ev.TrajectoryFinished() | ev.TrajectoryLost():
                began_s = event.time_s - event.busy_s
                self._trace.environment_step(event.trajectory, began_s, event.time_s, {})
            case ev.StopRequested():
                self._trace.instant("stop requested", event.time_s, {"signal": event.signal})
            case ev.Faulted():
                self._trace.instant("fault", event.time_s, {"error": event.error})
            case ev.EngineLost():
                self._trace.instant("engine lost", event.time_s, {"error": event.error})
            case ev.TrainerLost():
                self._trace.instant("trainer lost", event.time_s, {"error": event.error})
            case _:
                pass
        for action in actions:
            match action:
                case act.Warn():
                    self._trace.instant("warning", event.time_s, {"message": action.message})
                case act.Relieve():
                    self._trace.instant("relief", event.time_s, {"remedy": action.remedy})
                case _:
                    pass

    def _write_metrics(self, event: ev.BatchTrained, scheduler: Scheduler) -> None:
        if self._first_step_s is None:
            self._first_step_s = event.time_s
        row = {
            "step": event.version,
            "time_s": event.time_s,
            "batch": event.batch,
            "swaps": scheduler.books.swaps,
            "process_restarts": scheduler.recovery.restarts.numbers.total(),
            **event.metrics,
            **self._reward_parts,
            **self._redundancy(event, scheduler),
            **scheduler.books.groups.of_last_step,
        }
        self._metrics.write(row)
        self._loggers.log(event.version, of_step(row))

    def _write_evaluation(self, event: ev.EvaluationEnded, scheduler: Scheduler) -> None:
        """One in which nothing was scored, or of an abandoned line, is in the books only."""
        self._trace.instant("evaluated", event.time_s, {"step": event.version, **event.metrics})
        if not event.metrics or event.version > scheduler.swapper.trainer_version:
            return
        if self._evaluations is None:
            self._evaluations = MetricsWriter(self._run_dir / EVALUATIONS)
        self._evaluated = {"step": event.version, **event.metrics}
        row = {
            "step": event.version,
            "time_s": event.time_s,
            **event.metrics,
            "num_lost": sum(event.lost.values()),
            "num_cut": event.num_cut,
        }
        self._evaluations.write(row)
        self._loggers.log(event.version, of_evaluation(row))

    def _go_back(self, action: act.RollBack, scheduler: Scheduler) -> None:
        """Steps that are abandoned will be taken again; their lines must not stand twice."""
        self._metrics.close()
        keep_steps(self._metrics_path, up_to=action.version)
        self._metrics = MetricsWriter(self._metrics_path)
        keep_transcripts(self._run_dir / TRANSCRIPTS, up_to=action.version)
        if self._evaluations is not None:
            self._evaluations.close()
            self._evaluations = None
            keep_steps(self._run_dir / EVALUATIONS, up_to=action.version)
        if self._evaluated.get("step", 0) > action.version:
            self._evaluated = {}
        self._spares = scheduler.books.spares.copy()

    def _redundancy(self, event: ev.BatchTrained, scheduler: Scheduler) -> dict[str, float]:
        """Lengths of what won and of what was cancelled since the step before."""
        rollout = self._config.rollout
        if not (rollout.redundant_per_group or rollout.redundant_groups):
            return {}
        spares = scheduler.books.spares
        num_cancelled = spares["cancelled"] - self._spares["cancelled"]
        num_tokens = spares["tokens"] - self._spares["tokens"]
        self._spares = spares.copy()
        metrics = {
            "spares_cancelled": float(num_cancelled),
            "sampled_tokens_mean": event.num_tokens / len(event.digests),
        }
        if num_cancelled:
            metrics["cancelled_tokens_mean"] = num_tokens / num_cancelled
        return metrics

    def _snapshot(self, time_s: float, scheduler: Scheduler) -> RunSnapshot:
        books = scheduler.books
        states = Counter(_STATE_NAMES[t.state] for t in scheduler.buffer)
        step = scheduler.swapper.trainer_version
        return RunSnapshot(
            phase=scheduler.phase,
            elapsed_s=time_s,
            step=step,
            num_steps=self._config.steps,
            num_swaps=books.swaps,
            reward=books.rewards.last,
            best_reward=books.rewards.best,
            recent_rewards=tuple(books.rewards.recent(NUM_RECENT)),
            trajectories=states,
            endings={str(ending): n for ending, n in books.endings.items()},
            staleness=self._lags,
            max_staleness=self._config.buffer.max_staleness,
            tokens_generated=books.tokens["generated"],
            tokens_trained=books.tokens["trained"],
            tokens_carried=books.tokens["carried"],
            swap_cost_s=self._last_cost_s,
            mean_swap_cost_s=self._costs_s / self._num_costs if self._num_costs else None,
            swap_share=self._costs_s / time_s if time_s > 0 else 0.0,
            mismatch=books.mismatch.last_mean_abs,
            evaluation=self._evaluated,
            is_evaluating=scheduler.swapper.evaluations.holds_the_swap,
            warnings=(*books.warnings, *self._loggers.warnings),
            memory=self._memory,
            eta_s=self._eta_s(time_s, scheduler),
        )

    def _eta_s(self, time_s: float, scheduler: Scheduler) -> float | None:
        """From the pace since the first step, which is slower than the rest.

        Steps that a rollback has abandoned took their time, too.
        """
        num_done = scheduler.books.steps + scheduler.recovery.abandoned.steps - 1
        if self._first_step_s is None or num_done < 1:
            return None
        return (time_s - self._first_step_s) / num_done * scheduler.swapper.num_steps_left


def _mean_parts(parts: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Each reward function's mean over the trajectories that it had a reward for."""
    of_each: dict[str, list[float]] = {}
    for of_one in parts:
        for name, value in of_one.items():
            of_each.setdefault(name, []).append(value)
    return {f"reward_{name}_mean": fmean(values) for name, values in sorted(of_each.items())}


def _keep(sample: TrainingSample, step: int, floor: Floor) -> TrajectorySample:
    return TrajectorySample(
        step=step,
        trajectory=sample.trajectory,
        group=sample.group,
        reward=sample.reward,
        ending="trained",
        turns=[
            Turn(speaker, text, [TextSpan(*stretch) for stretch in stretches])
            for (speaker, text), stretches in zip(
                floor.contents[sample.trajectory].turns,
                floor.versions_of_turns(sample.trajectory),
                strict=True,
            )
        ],
        token_ids=list(sample.token_ids),
        logprobs=list(sample.logprobs),
        versions=list(sample.versions),
        loss_mask=list(sample.loss_mask),
    )
