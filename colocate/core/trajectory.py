"""One trajectory's states, the table of its transitions, and its record in the buffer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import StrEnum

from colocate.core import staleness
from colocate.core.types import Ending, GroupId, Span, TrajectoryId, Version, merge_spans


class State(StrEnum):
    """Where a resident trajectory is."""

    ACTING = "in environment"
    QUEUED = "queued"
    GENERATING = "generating"
    FINISHED = "finished"
    LEASED = "leased"
    ENDED = "ended"


UNFINISHED = (State.ACTING, State.QUEUED, State.GENERATING)


class Trigger(StrEnum):
    """What moves a trajectory from state to state."""

    TURN_READY = "turn ready"
    SUBMITTED = "submitted"
    GENERATED = "generated"
    ABORTED = "aborted"
    SCORED = "scored"
    LEASED = "leased"
    RETURNED = "returned"
    TAKEN_UP = "taken up"
    RESTARTED = "restarted"
    ENDED = "ended"


TRANSITIONS: dict[tuple[State, Trigger], State] = {
    (State.ACTING, Trigger.TURN_READY): State.QUEUED,
    (State.QUEUED, Trigger.SUBMITTED): State.GENERATING,
    (State.GENERATING, Trigger.GENERATED): State.ACTING,
    (State.GENERATING, Trigger.ABORTED): State.QUEUED,
    (State.ACTING, Trigger.SCORED): State.FINISHED,
    (State.FINISHED, Trigger.LEASED): State.LEASED,
    (State.LEASED, Trigger.RETURNED): State.FINISHED,
    **{(s, Trigger.TAKEN_UP): State.ACTING for s in UNFINISHED},
    (State.ACTING, Trigger.RESTARTED): State.ACTING,
    (State.QUEUED, Trigger.RESTARTED): State.ACTING,
    (State.FINISHED, Trigger.RESTARTED): State.ACTING,
    **{(s, Trigger.ENDED): State.ENDED for s in State if s is not State.ENDED},
}

STORY_LENGTH = 32
"""Moves that a trajectory remembers, for the error that an illegal one raises."""


class ProtocolError(Exception):
    """An event contradicts what the core knows. Nothing was changed."""


@dataclass(slots=True, kw_only=True)
class Trajectory:
    """The buffer's record. The content itself lies in the segment store of the rollout side.

    Attributes:
        attempt: Raised by a restart; events of an earlier attempt are late.
        spans: Of the sampled tokens so far.
        digest: Of the whole content, as last told; "" before anything was told.
        num_turns: Texts of its content so far: the prompt's, an agent's, an environment's, and so
            on by turns. The observation that comes with the episode's end is not counted.
        crossings: Swaps that it crossed unfinished with tokens sampled.
        num_requests: Requests made so far; numbers the next one.
        resumed: Its next request continues a turn that a park cut, or re-reads a context whose
            KV cache a swap dropped.
    """

    id: TrajectoryId
    group: GroupId
    state: State = State.ACTING
    attempt: int = 0
    spans: tuple[Span, ...] = ()
    digest: str = ""
    num_context_tokens: int = 0
    num_turns: int = 0
    reward: float | None = None
    crossings: int = 0
    num_requests: int = 0
    request: str | None = None
    resumed: bool = False
    ending: Ending | None = None
    story: deque[tuple[float, Trigger]] = field(
        default_factory=lambda: deque(maxlen=STORY_LENGTH), compare=False
    )

    @property
    def num_sampled_tokens(self) -> int:
        return sum(span.length for span in self.spans)

    @property
    def oldest(self) -> Version | None:
        return staleness.oldest(self.spans)

    @property
    def is_unfinished(self) -> bool:
        return self.state in UNFINISHED

    @property
    def wants_turn(self) -> bool:
        """Whether the agent is next to speak, and not its environment."""
        return self.num_turns % 2 == 1

    def check(self, trigger: Trigger) -> State:
        """The state that the trigger leads to.

        Raises:
            ProtocolError: where the table has none; the message tells the whole story.
        """
        try:
            return TRANSITIONS[self.state, trigger]
        except KeyError:
            raise ProtocolError(
                f"trajectory {self.id} of group {self.group} is {self.state} and cannot be "
                f"{trigger}. {self.tell()}"
            ) from None

    def move(self, trigger: Trigger, time_s: float) -> None:
        self.state = self.check(trigger)
        self.story.append((time_s, trigger))

    def extend(self, spans: tuple[Span, ...]) -> None:
        self.spans = merge_spans((*self.spans, *spans))

    def tell(self) -> str:
        """Its story in words: attempt, tokens by version, and its last moves with their times."""
        spans = ", ".join(f"{s.length} of version {s.version}" for s in self.spans) or "none"
        moves = ", ".join(f"{trigger} at {time_s:.3f} s" for time_s, trigger in self.story)
        return f"Attempt {self.attempt}; sampled tokens: {spans}; so far: {moves or 'nothing'}."
