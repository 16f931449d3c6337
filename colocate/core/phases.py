"""The phases of a run and the transitions between them, as data.

The state diagram in ``docs/architecture.md`` is generated from ``TRANSITIONS``.
"""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise


class Phase(StrEnum):
    """Who has the device, or who is on the way to it."""

    STARTING = "starting"
    ROLLOUT = "rollout"
    PARKING = "parking"
    SLEEPING = "sleeping"
    TRAINER_WAKING = "trainer_waking"
    TRAINING = "training"
    TRAINER_OFFLOADING = "trainer_offloading"
    WEIGHTS_WAKING = "weights_waking"
    PUBLISHING = "publishing"
    KV_WAKING = "kv_waking"
    CLOSING = "closing"
    CLOSED = "closed"
    FAILED = "failed"


class Cause(StrEnum):
    """Why a phase is left."""

    DONE = "done"
    RESUMED = "resumed"
    SWAP_DUE = "swap due"
    ENGINE_LOST = "engine lost"
    TRAINER_LOST = "trainer lost"
    CLOSE = "close"
    FAULT = "fault"


SWAP = (
    Phase.PARKING,
    Phase.SLEEPING,
    Phase.TRAINER_WAKING,
    Phase.TRAINING,
    Phase.TRAINER_OFFLOADING,
    Phase.WEIGHTS_WAKING,
    Phase.PUBLISHING,
    Phase.KV_WAKING,
)
"""A swap: from ROLLOUT left to KV_WAKING ended. No token is generated after PARKING's end."""

ENDS = frozenset({Phase.CLOSED, Phase.FAILED})
"""Nothing follows these."""

TRANSITIONS: dict[tuple[Phase, Cause], Phase] = {
    (Phase.STARTING, Cause.DONE): Phase.ROLLOUT,
    (Phase.STARTING, Cause.RESUMED): Phase.WEIGHTS_WAKING,
    (Phase.ROLLOUT, Cause.SWAP_DUE): Phase.PARKING,
    **{(a, Cause.DONE): b for a, b in pairwise(SWAP)},
    (Phase.KV_WAKING, Cause.DONE): Phase.ROLLOUT,
    **{
        (phase, Cause.CLOSE): Phase.CLOSING
        for phase in Phase
        if phase not in ENDS and phase is not Phase.CLOSING
    },
    **{
        (phase, Cause.ENGINE_LOST): Phase.STARTING
        for phase in Phase
        if phase not in (*ENDS, Phase.CLOSING, Phase.TRAINER_WAKING, Phase.TRAINING)
    },
    **{
        (phase, Cause.TRAINER_LOST): Phase.STARTING
        for phase in Phase
        if phase not in ENDS and phase is not Phase.CLOSING
    },
    (Phase.CLOSING, Cause.DONE): Phase.CLOSED,
    **{(phase, Cause.FAULT): Phase.FAILED for phase in Phase if phase not in ENDS},
}


class IllegalTransition(Exception):
    """A phase was left for a cause that the table does not allow. Nothing was changed."""


def next_phase(phase: Phase, cause: Cause) -> Phase:
    """Looks the transition up.

    Raises:
        IllegalTransition: where the table has none.
    """
    try:
        return TRANSITIONS[phase, cause]
    except KeyError:
        allowed = sorted(str(c) for p, c in TRANSITIONS if p is phase)
        raise IllegalTransition(
            f"phase {phase} cannot be left because of {str(cause)!r}; it can be left because of "
            f"{', '.join(allowed) or 'nothing'}"
        ) from None
