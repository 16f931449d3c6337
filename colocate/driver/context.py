"""The collaborators of a run, and what the parts of the driver share while it lasts."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from colocate.core.actions import Action
from colocate.core.events import Event, Faulted
from colocate.core.scheduler import Scheduler
from colocate.core.types import MemorySample
from colocate.journal import JournalWriter
from colocate.ports import (
    EnvironmentFactory,
    Inference,
    PromptSource,
    StepReport,
    Trainer,
    TrainingBatch,
    WeightTransfer,
)
from colocate.rollout.evaluation import Evaluator
from colocate.rollout.floor import Floor
from colocate.rollout.gate import Gate
from colocate.rollout.runner import RewardFunction, Tokenizer
from colocate.run_state import Checkpoints

logger = logging.getLogger(__name__)


class Observer(Protocol):
    """Looks on: display, metrics, trace, transcripts. Must not block and must not raise."""

    def on_progress(self, what: str) -> None: ...

    def on_event(self, event: Event, actions: Sequence[Action], scheduler: Scheduler) -> None: ...

    def on_step(self, batch: TrainingBatch, report: StepReport, floor: Floor) -> None: ...

    def on_memory(self, time_s: float, sample: MemorySample) -> None: ...

    def on_telemetry(self, time_s: float, values: Mapping[str, float]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The collaborators of one run.

    ``measure`` reads what decisions are taken on, ``telemetry`` what is only shown.
    """

    inference: Inference
    trainer: Trainer
    transfer: WeightTransfer
    measure: Callable[[], Awaitable[MemorySample]] | None
    make_environment: EnvironmentFactory
    prompts: PromptSource
    tokenizer: Tokenizer
    reward: RewardFunction | None
    checkpoints: Checkpoints
    telemetry: Callable[[], Awaitable[Mapping[str, float]]] | None = None


@dataclass(slots=True, kw_only=True)
class Context:
    """One run, as every part of its driver sees it.

    Attributes:
        origin_s: Where on the loop's clock the run's clock began.
        evaluator: There where the run has evaluations.
        incarnation: Recoveries of engine or trainer so far; see ``colocate.core.events.PortEvent``.
        is_blind: Events are no longer recorded: the journal or an observer has failed.
        tasks: Of whatever runs beside the loop; there while the run lasts, as ``floor`` is.
    """

    scheduler: Scheduler
    ports: Ports
    journal: JournalWriter
    observers: Sequence[Observer]
    gate: Gate = field(default_factory=Gate)
    events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue)
    origin_s: float = 0.0
    incarnation: int = 0
    is_blind: bool = False
    tasks: asyncio.TaskGroup = field(init=False)
    floor: Floor = field(init=False)
    evaluator: Evaluator | None = None

    def now_s(self) -> float:
        """Seconds since the run began, to the microsecond."""
        return round(asyncio.get_running_loop().time() - self.origin_s, 6)

    def post(self, event: Event) -> None:
        self.events.put_nowait(event)

    def fault(self, error: BaseException) -> None:
        """Ends the run through the scheduler, with this for its cause."""
        logger.error("the run is ended by a fault", exc_info=error)
        self.post(Faulted(time_s=self.now_s(), error=one_line(error)))

    def tell(self, what: str) -> None:
        for observer in self.observers:
            observer.on_progress(what)


def one_line(error: BaseException) -> str:
    """An error as one line for people: its type, and what it says."""
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text}"
