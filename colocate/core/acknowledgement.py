"""The trainer's acknowledgement of a batch, held against what the buffer leased."""

from __future__ import annotations

from colocate.core.buffer import Buffer, Lease
from colocate.core.events import BatchTrained
from colocate.core.trajectory import ProtocolError
from colocate.core.types import TrajectoryId


def check_acknowledgement(buffer: Buffer, lease: Lease, event: BatchTrained) -> None:
    """What was trained must be what was leased: one version later, token for token.

    Raises:
        ProtocolError: where it is not.
    """
    if event.version != lease.version + 1:
        raise ProtocolError(
            f"batch {event.batch} began at version {lease.version} and ended at "
            f"{event.version}; a training step is one version"
        )
    replayed = [member for replay in lease.replays for member in replay.members]
    names = (*lease.trajectories, *(member.id for member in replayed))
    known = (
        *(_digest(buffer, t) for t in lease.trajectories),
        *(member.digest for member in replayed),
    )
    if event.digests != known:
        wrong = [t for t, a, b in zip(names, known, event.digests, strict=False) if a != b]
        raise ProtocolError(
            f"batch {event.batch} was not trained on what was leased: of "
            f"{len(known)} trajectories {len(event.digests)} came back, and the content of "
            f"{wrong or 'none'} differs"
        )
    expected = sum(s.length for s in buffer.trained_spans(lease))
    expected += sum(member.num_sampled_tokens for member in replayed)
    if event.num_tokens != expected:
        raise ProtocolError(
            f"batch {event.batch} has {expected} sampled tokens, but {event.num_tokens} were "
            "trained"
        )


def _digest(buffer: Buffer, trajectory: TrajectoryId) -> str:
    found = buffer.get(trajectory)
    return found.digest if found else ""
