"""Transcripts as the page of a run shows them: coloured by the weights that sampled the text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from colocate.report.transcripts import TrajectorySample, Turn, printable, weights_of

SAMPLES_PER_STEP = 3
NUM_COLOURS = 6
"""Of versions in a transcript, as the page's style has them."""


def transcripts_by_step(
    samples: Sequence[TrajectorySample],
) -> Iterator[tuple[int, list[dict[str, Any]]]]:
    """Training steps with the first of their samples, as the page's template takes them."""
    for step, of_step in groupby(samples, key=lambda sample: sample.step):
        yield step, [_shown(sample) for sample in list(of_step)[:SAMPLES_PER_STEP]]


def _shown(sample: TrajectorySample) -> dict[str, Any]:
    """Versions are numbered from the oldest in the sample on: each has a colour of its own there.

    Where there are more than colours, the oldest share one.
    """
    versions = sorted(
        {version for turn in sample.turns for _, version in turn.pieces() if version is not None}
    )
    num_too_many = max(0, len(versions) - NUM_COLOURS)
    classes = {version: max(0, at - num_too_many) for at, version in enumerate(versions)}
    reward = "no reward" if sample.reward is None else f"reward {sample.reward:.3f}"
    told = f"trajectory {sample.trajectory}: {reward}, {sample.ending}"
    told += ", by weights of" if versions else weights_of(sample)
    return {
        "turns": [(turn.speaker, list(_pieces(turn, classes))) for turn in sample.turns],
        "versions": list(classes.items()),
        "ending": told,
    }


def _pieces(turn: Turn, classes: Mapping[int, int]) -> Iterator[tuple[str, int | None, int]]:
    """Text, version and number of the version's colour; the last line's end is not shown."""
    pieces = list(turn.pieces())
    for index, (text, version) in enumerate(pieces):
        shown = printable_lines(text if index < len(pieces) - 1 else text.rstrip("\n"))
        if shown:
            yield shown, version, 0 if version is None else classes[version]


def printable_lines(text: str) -> str:
    """As ``printable``, but lines stay lines."""
    return "\n".join(printable(line) for line in text.split("\n"))
