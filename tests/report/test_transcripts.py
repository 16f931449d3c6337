"""Samples of trajectories survive the file bit by bit, and read well on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import load_dataset

from colocate.report.transcripts import (
    TextSpan,
    TrajectorySample,
    Turn,
    format_transcript,
    keep_transcripts,
    read_transcripts,
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
    assert first["turns"][2] == {"speaker": "environment", "text": "low\n", "spans": []}
    assert second["reward"] is None


def test_a_step_without_samples_has_a_file_of_the_same_schema(tmp_path: Path) -> None:
    empty = pq.read_table(write_transcripts(tmp_path, 1, []))
    full = pq.read_table(write_transcripts(tmp_path, 2, [sample()]))
    assert empty.num_rows == 0
    assert empty.schema == full.schema


def test_samples_of_abandoned_steps_go(tmp_path: Path) -> None:
    for step in (9, 10, 11, 120):
        write_transcripts(tmp_path, step, [sample(step=step)])
    (tmp_path / "notes.txt").write_text("somebody's")
    keep_transcripts(tmp_path, up_to=10)
    kept = sorted(path.name for path in tmp_path.iterdir())
    assert kept == ["notes.txt", "step_000009.parquet", "step_000010.parquet"]
    keep_transcripts(tmp_path / "none", up_to=0)


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


def test_a_text_comes_in_pieces_of_one_version_each() -> None:
    turn = Turn("agent", "one two", [TextSpan(3, 4), TextSpan(4, 3)])
    assert list(turn.pieces()) == [("one ", 3), ("two", 4)]
    assert list(Turn("environment", "low").pieces()) == [("low", None)]
    assert list(Turn("agent", "").pieces()) == [("", None)]


def test_spans_survive_the_file_and_old_files_have_none(tmp_path: Path) -> None:
    turns = [Turn("prompt", "0-9?"), Turn("agent", "47", [TextSpan(11, 1), TextSpan(12, 1)])]
    path = write_transcripts(tmp_path, 1, [sample(turns=turns)])
    (read,) = read_transcripts(path)
    assert [list(turn.pieces()) for turn in read.turns] == [list(turn.pieces()) for turn in turns]
    rows = pq.read_table(path).to_pylist()
    for turn in rows[0]["turns"]:
        del turn["spans"]
    pq.write_table(pa.Table.from_pylist(rows), path)
    (old,) = read_transcripts(path)
    assert [list(turn.pieces()) for turn in old.turns] == [[("0-9?", None)], [("47", None)]]


def test_transcripts_load_as_a_data_set(tmp_path: Path) -> None:
    for step in (1, 2):
        write_transcripts(tmp_path / "trajectories", step, [sample(step=step)])
    files = str(tmp_path / "trajectories" / "*.parquet")
    rows = load_dataset("parquet", data_files=files, cache_dir=str(tmp_path / "cache"))["train"]
    assert rows["step"] == [1, 2]
    assert rows[0]["turns"][1]["text"] == "4\n"
