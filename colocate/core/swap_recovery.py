"""How the swap protocol loses engine or trainer, and where it goes on.

Whether to recover at all is decided in ``colocate.core.recovery``.
"""

from __future__ import annotations

from typing import Any

from colocate.core.actions import Action, SampleMemory, StartEngine, StartPorts
from colocate.core.departure import Departure
from colocate.core.events import PhaseEnded, TimerFired
from colocate.core.phases import Cause, Phase, next_phase
from colocate.core.restarts import Process
from colocate.core.swap import MEMORY_POLL_S, Outcome, Swapper
from colocate.core.types import Version

_OF_ENGINE = (Phase.PARKING, Phase.SLEEPING, Phase.WEIGHTS_WAKING, Phase.KV_WAKING)


class RecoverableSwapper(Swapper):
    """A swapper whose engine and trainer may be lost.

    Attributes:
        engine_is_lost: It is to be replaced when the trainer, which is at work, is done.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.engine_is_lost = False
        self._engine_is_fresh = False  # replaced, and nothing was published to it yet

    # Losing

    def lose_engine(self, time_s: float) -> list[Action]:
        """Starts a new engine: now, or when the trainer, which is at work, is done."""
        if self._trainer_rests:
            return self._replace_engine(time_s)
        self.engine_is_lost = True
        # Where it was to be relieved of memory, that is free now.
        return [SampleMemory(at_s=time_s + MEMORY_POLL_S)] if self._waits else []

    def _replace_engine(self, time_s: float) -> list[Action]:
        """What was leased and not trained goes back; the swap that it was leased for is no more."""
        if self.phase in (Phase.ROLLOUT, Phase.PARKING, Phase.SLEEPING):
            self._num_batches = 0
        cut = self.evaluations.cut("the engine was lost", is_void=True)
        actions = [*cut, *self._return_leases(time_s)]
        self.incarnation += 1
        self.engine_is_lost = self._trainer_starts = False
        self._engine_is_fresh = True
        self._weights_of = None
        self._leave(Cause.ENGINE_LOST, time_s)
        self._parked = False
        offload = self.residency.lose_engine()
        start = StartEngine(incarnation=self.incarnation, offload=offload)
        return [*actions, *self._set_deadline(time_s, self._settings.start_timeout_s), start]

    def _return_leases(self, time_s: float) -> list[Action]:
        self._leases.clear()
        returned = self._buffer.return_leases(time_s)
        unused = [replay for lease in returned for replay in lease.replays]
        return self.replays.take_up(unused, self.trainer_version) if unused else []

    def roll_back(self, version: Version, time_s: float) -> list[Action]:
        """Starts trainer and engine anew, from a checkpoint; the buffers have been put back."""
        cut = self.evaluations.go_back(version)
        self.incarnation += 1
        self._leases.clear()
        self._num_batches = 0
        self.engine_is_lost = self._engine_is_fresh = False
        self._trainer_starts = True
        self.trainer_version = self.engine_version = version
        self.checkpoints.begin(version, time_s)
        self._weights_of = None
        self._expects = version > 0 and self._settings.verify_every > 0
        self._departure = Departure(self._settings, self._buffer, self._costs)
        self._leave(Cause.TRAINER_LOST, time_s)
        self._parked = False
        self.residency.lose_everything()
        start = StartPorts(version=version, expect=self._expects, incarnation=self.incarnation)
        return [*cut, *self._set_deadline(time_s, self._settings.start_timeout_s), start]

    def stop_without(self, process: Process, cause: str, time_s: float) -> list[Action]:
        """A process is lost in a run that is to end anyway: it ends now, if it can."""
        if process is Process.TRAINER:
            error = f"no checkpoint: {cause}"
            self.outcome = Outcome(status="stopped", signal=self._signal, error=error)
            return self._close(time_s, checkpoint=False)
        return self._close(time_s) if self._trainer_rests else []

    # Going on

    def phase_ended(self, event: PhaseEnded) -> list[Action]:
        actions = super().phase_ended(event)
        if event.phase is Phase.PUBLISHING:
            self._engine_is_fresh = False
        return actions

    def _enter(self, cause: Cause, time_s: float) -> list[Action]:
        if self.engine_is_lost and next_phase(self.phase, cause) is Phase.WEIGHTS_WAKING:
            self._leave(cause, time_s)
            return self._replace_engine(time_s)
        return super()._enter(cause, time_s)

    # Silence

    def hangs(self, event: TimerFired) -> tuple[Process, str] | None:
        """Which process has not answered in time, and what is to be said of it; None: none.

        Memory that does not come free is no process's silence.
        """
        if self.is_stopping or self._waits or self.phase is Phase.CLOSING:
            return None
        if self.phase is Phase.ROLLOUT:
            silent_s = event.time_s - self.progress_s
            is_due = (
                self._deadlines.is_of_idling(event) and silent_s >= self._settings.idle_timeout_s
            )
            owes = is_due and self._requests.num_inflight
            return (Process.ENGINE, self._explain_idling()) if owes else None
        if not self._deadlines.is_of_phase(event):
            return None
        return self._silent_process, self._explain_deadline()

    @property
    def _silent_process(self) -> Process:
        """Whom the present phase waits for. Where that is both, the one that is cheaper to lose.

        A new engine to which publishing hangs again shows that it was the trainer, and one that
        does not start in time may wait for it.
        """
        if self.phase is Phase.PUBLISHING and not self._engine_is_fresh:
            return Process.ENGINE
        return Process.ENGINE if self.phase in _OF_ENGINE else Process.TRAINER
