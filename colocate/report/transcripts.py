"""Samples of trajectories: kept as parquet in the run's folder, read as text on the terminal."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import get_args

import pyarrow as pa
import pyarrow.parquet as pq

from colocate.run_state import Speaker

TRANSCRIPTS = "trajectories"
"""The folder within a run's."""

SCHEMA = pa.schema(
    [
        ("step", pa.int64()),
        ("trajectory", pa.int64()),
        ("group", pa.int64()),
        ("reward", pa.float64()),
        ("ending", pa.string()),
        (
            "turns",
            pa.list_(
                pa.struct(
                    [
                        ("speaker", pa.string()),
                        ("text", pa.string()),
                        (
                            "spans",
                            pa.list_(
                                pa.struct([("version", pa.int64()), ("characters", pa.int64())])
                            ),
                        ),
                    ]
                )
            ),
        ),
        ("token_ids", pa.list_(pa.int64())),
        ("logprobs", pa.list_(pa.float64())),
        ("versions", pa.list_(pa.int64())),
        ("loss_mask", pa.list_(pa.int8())),
    ]
)


_SPEAKER_WIDTH = max(len(speaker) for speaker in get_args(Speaker))


@dataclass(frozen=True, slots=True)
class TextSpan:
    """So many characters of a text, sampled by the weights of one version."""

    version: int
    characters: int


@dataclass(frozen=True, slots=True)
class Turn:
    """One stretch of text and who wrote it.

    ``spans``: of an agent's, in order, how many characters the weights of which version sampled;
    together they are the whole text. Empty of others', and in files of before it was kept.
    """

    speaker: Speaker
    text: str
    spans: Sequence[TextSpan] = ()

    def pieces(self) -> Iterator[tuple[str, int | None]]:
        """The text in pieces of one version each; None where it is not known or not sampled."""
        begin = 0
        for span in self.spans:
            yield self.text[begin : begin + span.characters], span.version
            begin += span.characters
        if begin < len(self.text) or not self.spans:
            yield self.text[begin:], None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectorySample:
    """One trajectory as it is kept.

    ``token_ids``, ``logprobs``, ``versions`` and ``loss_mask`` have one length and mean what they
    mean in ``colocate.ports.TrainingSample``. ``step`` is the training step that trained it, or
    would have; ``reward`` is ``None`` where it ended without one.
    """

    step: int
    trajectory: int
    group: int
    reward: float | None
    ending: str
    turns: Sequence[Turn]
    token_ids: Sequence[int]
    logprobs: Sequence[float]
    versions: Sequence[int]
    loss_mask: Sequence[int]

    def __post_init__(self) -> None:
        lengths = {
            len(self.token_ids),
            len(self.logprobs),
            len(self.versions),
            len(self.loss_mask),
        }
        if len(lengths) != 1:
            raise ValueError(
                f"trajectory {self.trajectory}: token ids, log-probabilities, versions and mask "
                f"have the lengths {len(self.token_ids)}, {len(self.logprobs)}, "
                f"{len(self.versions)}, {len(self.loss_mask)}; they must be equal"
            )


def write_transcripts(folder: Path, step: int, samples: Sequence[TrajectorySample]) -> Path:
    """Writes ``step_000012.parquet`` for step 12, as one, and returns its path."""
    rows = [
        {
            "step": sample.step,
            "trajectory": sample.trajectory,
            "group": sample.group,
            "reward": sample.reward,
            "ending": sample.ending,
            "turns": [asdict(turn) for turn in sample.turns],
            "token_ids": list(sample.token_ids),
            "logprobs": list(sample.logprobs),
            "versions": list(sample.versions),
            "loss_mask": list(sample.loss_mask),
        }
        for sample in samples
    ]
    folder.mkdir(parents=True, exist_ok=True)
    path = _path(folder, step)
    written = folder / f".{path.name}.{os.getpid()}"
    pq.write_table(pa.Table.from_pylist(rows, schema=SCHEMA), written)
    written.replace(path)
    return path


def keep_transcripts(folder: Path, *, up_to: int) -> None:
    """Removes those of later steps: they were abandoned, and other samples will train them."""
    last = _path(folder, up_to)
    for path in folder.glob("step_*.parquet"):
        if path.name > last.name:
            path.unlink()


def _path(folder: Path, step: int) -> Path:
    return folder / f"step_{step:06}.parquet"


def read_transcripts(path: Path) -> list[TrajectorySample]:
    """What ``write_transcripts`` wrote.

    Raises:
        OSError: the file cannot be read, or is no parquet (pyarrow's errors are of this kind).
        KeyError, TypeError, ValueError: it holds something else.
    """
    return [
        TrajectorySample(**{**row, "turns": [_turn(**turn) for turn in row["turns"]]})
        for row in pq.read_table(path).to_pylist()
    ]


def _turn(speaker: Speaker, text: str, spans: Sequence[Mapping[str, int]] = ()) -> Turn:
    return Turn(speaker, text, [TextSpan(**span) for span in spans])


def format_transcript(sample: TrajectorySample, *, max_lines: int = 20) -> str:
    """Who said what, a line each, ready for a terminal.

    Lines within a turn are shown apart, ends of lines that the agent wrote are not shown, and a
    long transcript loses its middle, with the number of lines said.
    """
    width = _SPEAKER_WIDTH
    lines = [line for turn in sample.turns for line in transcript_lines(turn.speaker, turn.text)]
    if len(lines) > max_lines:
        head = max_lines // 2
        tail = max_lines - head - 1
        omitted = len(lines) - head - tail
        gap = f"{'':>{width}}  ({omitted} lines left out)"
        lines = [*lines[:head], gap, *lines[len(lines) - tail :]]
    reward = "no reward" if sample.reward is None else f"reward {sample.reward:.2f}"
    return "\n".join([*lines, f"{'':>{width}}  -> {reward}, {sample.ending}{weights_of(sample)}"])


def transcript_lines(speaker: Speaker, text: str) -> list[str]:
    """A turn's lines, ready for a terminal; the speaker's name stands before the first."""
    shown = [printable(line) for line in text.rstrip("\n").split("\n")]
    speakers = [speaker, *[""] * (len(shown) - 1)]
    pairs = zip(speakers, shown, strict=True)
    return [f"{who:>{_SPEAKER_WIDTH}}  {line}".rstrip() for who, line in pairs]


def weights_of(sample: TrajectorySample) -> str:
    """Which versions sampled its trainable tokens, as the end of a sentence."""
    versions = sorted({v for v, m in zip(sample.versions, sample.loss_mask, strict=True) if m})
    if not versions:
        return ""
    if len(versions) == 1:
        return f", by weights of version {versions[0]}"
    return f", by weights of versions {versions[0]} to {versions[-1]}"


def printable(text: str) -> str:
    """What a model wrote must not steer the terminal: control characters are shown as escapes."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
