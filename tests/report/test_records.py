"""Summary and metrics: strict JSON, whole at any moment."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from colocate.report.records import MetricsWriter, keep_steps, read_metrics, write_summary


def test_a_metrics_line_is_readable_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    writer.write({"step": 1, "loss": 0.5})
    assert read_metrics(path) == [{"step": 1, "loss": 0.5}]
    writer.write({"step": 2, "loss": 0.25})
    writer.close()
    writer.close()
    assert [row["step"] for row in read_metrics(path)] == [1, 2]


def test_a_resumed_run_appends_after_the_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2, "lo')
    assert read_metrics(path) == [{"step": 1}]
    writer = MetricsWriter(path)
    writer.write({"step": 2})
    writer.close()
    assert path.read_text() == '{"step": 1}\n{"step": 2}\n'


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_number_that_is_not_finite_is_refused_and_named(tmp_path: Path, value: float) -> None:
    path = tmp_path / "metrics.jsonl"
    writer = MetricsWriter(path)
    with pytest.raises(ValueError, match=r"reward\.all\[1\] .* is not finite"):
        writer.write({"step": 1, "reward": {"all": [0.0, value]}})
    writer.close()
    assert path.read_bytes() == b""


def test_a_broken_metrics_line_is_named(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step"\n{"step": 3}\n')
    with pytest.raises(ValueError, match="line 2"):
        read_metrics(path)


def test_a_summary_is_replaced_as_one(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_summary(path, {"steps": 1})
    with path.open() as old:
        write_summary(path, {"steps": 2, "error": None})
        assert json.load(old) == {"steps": 1}
    assert json.loads(path.read_text()) == {"steps": 2, "error": None}
    assert os.listdir(tmp_path) == ["summary.json"]


def test_a_summary_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    path = tmp_path / "summary.json"
    write_summary(path, {"steps": 1})
    with pytest.raises(ValueError, match=r"reward\.last"):
        write_summary(path, {"steps": 2, "reward": {"last": float("nan")}})
    assert json.loads(path.read_text()) == {"steps": 1}
    assert os.listdir(tmp_path) == ["summary.json"]


def test_a_resumed_run_takes_the_steps_after_its_checkpoint_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    keep_steps(path, up_to=0)
    assert not path.exists()
    writer = MetricsWriter(path)
    for step in (1, 2, 3, 4):
        writer.write({"step": step, "loss": step / 2})
    writer.close()
    keep_steps(path, up_to=2)
    assert [row["step"] for row in read_metrics(path)] == [1, 2]
