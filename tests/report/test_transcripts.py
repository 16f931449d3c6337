"""Samples of trajectories survive the file bit by bit, and read well on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from colocate.report.transcripts import (
    TrajectorySample,
    Turn,
    format_transcript,
    write_transcripts,
)

SEARCH = (
    Turn("prompt", "0-9?\n"),
    Turn("agent", "4\n"),
    Turn("environment", "low\n"),
    Turn("agent", "7\n"),
)


def sample(**changes: Any) -> TrajectorySample:
    fields: dict[str, Any] = {
        "step": 12,
        "trajectory": 3841,
        "group": 120,
        "reward": 0.9,
        "ending": "trained",
        "turns": SEARCH,
        "token_ids": [1, 2, 3],
        "logprobs": [0.0, -0.1234567890123, -1e-9],
        "versions": [-1, 11, 12],
        "loss_mask": [0, 1, 1],
    }
    return TrajectorySample(**{**fields, **changes})


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    path = write_transcripts(tmp_path / "trajectories", 12, [sample(), sample(reward=None)])
    assert path.name == "step_000012.parquet"
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    first, second = pq.read_table(path).to_pylist()
    assert first["logprobs"] == [0.0, -0.1234567890123, -1e-9]
    assert first["versions"] == [-1, 11, 12]
    assert first["turns"][2] == {"speaker": "environment", "text": "low\n"}
    assert second["reward"] is None


def test_a_step_without_samples_has_a_file_of_the_same_schema(tmp_path: Path) -> None:
    empty = pq.read_table(write_transcripts(tmp_path, 1, []))
    full = pq.read_table(write_transcripts(tmp_path, 2, [sample()]))
    assert empty.num_rows == 0
    assert empty.schema == full.schema


def test_lengths_that_differ_are_refused() -> None:
    with pytest.raises(ValueError, match=r"trajectory 3841: .* 3, 2, 3, 3; they must be equal"):
        sample(logprobs=[0.0, 1.0])


def test_a_transcript_says_who_said_what() -> None:
    assert format_transcript(sample()) == (
        "     prompt  0-9?\n"
        "      agent  4\n"
        "environment  low\n"
        "      agent  7\n"
        "             -> reward 0.90, trained, by weights of versions 11 to 12"
    )


def test_lines_within_a_turn_stay_apart() -> None:
    text = format_transcript(sample(turns=[Turn("agent", "one\ntwo\n")], versions=[-1, 5, 5]))
    assert text.splitlines()[:2] == ["      agent  one", "             two"]
    assert text.endswith("by weights of version 5")


def test_a_long_transcript_loses_its_middle_and_says_so() -> None:
    text = format_transcript(sample(turns=[Turn("agent", str(i)) for i in range(100)]), max_lines=9)
    lines = text.splitlines()
    assert len(lines) == 10
    assert "(92 lines left out)" in text
    assert lines[0].endswith(" 0")
    assert lines[-2].endswith(" 99")


def test_a_model_cannot_steer_the_terminal() -> None:
    text = format_transcript(sample(turns=[Turn("agent", "\x1b[2Jgone\r")]))
    assert "\x1b" not in text
    assert "\\x1b[2Jgone\\r" in text
