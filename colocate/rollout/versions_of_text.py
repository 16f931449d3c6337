"""Which weights sampled which characters: the versions of tokens, carried over to their text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from colocate.rollout.content import Content
from colocate.rollout.turns import Decode

VersionedText = tuple[int, int]
"""A version, and how many characters of a text it sampled."""


def versions_of_turns(content: Content, decode: Decode) -> list[tuple[VersionedText, ...]]:
    """For each turn its stretches in order, which together are its text; none where not sampled.

    A character whose tokens two versions sampled is the later one's, which completed it.
    """
    begins = [0, *content.turn_ends]
    return [
        _stretches(content.token_ids[begin:end].tolist(), content.versions[begin:end], text, decode)
        if speaker == "agent"
        else ()
        for (speaker, text), begin, end in zip(
            content.turns, begins, content.turn_ends, strict=False
        )
    ]


def _stretches(
    token_ids: Sequence[int], versions: Sequence[int], text: str, decode: Decode
) -> tuple[VersionedText, ...]:
    lengths = [(version, len(list(run))) for version, run in groupby(versions)]
    stretches: list[VersionedText] = []
    num_tokens = begin = 0
    for position, (version, length) in enumerate(lengths, start=1):
        num_tokens += length
        end = len(text)
        if position < len(lengths):
            # A turn as its environment reads it may lack the token that ended it.
            end = max(begin, _num_common(text, decode(token_ids[:num_tokens])))
        if end > begin:
            stretches.append((version, end - begin))
        begin = end
    return tuple(stretches)


def _num_common(one: str, other: str) -> int:
    """How many characters two texts have in common at their beginnings."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
