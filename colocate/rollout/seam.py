"""Stop strings across the seam of a park.

The engine looks for stop strings in the output of one request. Where a park cut a turn in the
middle of one, its head lies in the earlier request and its tail in the later: only who sees the
whole turn can find it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from colocate.core.types import FinishReason
from colocate.ports import Generation


def cut_at_stop(
    earlier: Sequence[int],
    generation: Generation,
    stop: Sequence[str],
    decode: Callable[[Sequence[int]], str],
) -> tuple[int, FinishReason]:
    """How many of the new tokens belong to the turn, and why it ended.

    Args:
        earlier: Tokens of this turn from before the park; empty where there was none.
        generation: What the latest request produced.
        stop: The turn ends with the token that completes one of these.
        decode: The tokenizer's.

    Returns:
        The number of leading tokens of ``generation`` to keep. All of them, with the engine's own
        reason, unless a stop string straddles the seam: then the tokens up to the one that
        completes it, with ``STOP``. What was sampled after that one is exactly what the engine
        would not have sampled without the park.
    """
    new = generation.token_ids
    if not earlier or not new or not stop:
        return len(new), generation.finish_reason
    if not any(s in decode([*earlier, *new]) for s in stop):
        return len(new), generation.finish_reason
    for kept in range(1, len(new) + 1):
        text = decode([*earlier, *new[:kept]])
        if any(s in text for s in stop):
            return kept, FinishReason.STOP
    raise AssertionError("the whole turn holds a stop string that none of its beginnings holds")
