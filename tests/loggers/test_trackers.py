"""The real packages: what is logged can be read back with the package's own reader."""

from __future__ import annotations

import json
import math
import sqlite3
import struct
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from colocate.config import RunConfig
from colocate.loggers.factory import flat, make_loggers
from tests.config.trees import with_values
from tests.patience import patient

ENTRIES = [
    (0, {"eval/pass@1": 0.25}),
    (1, {"train/loss": 0.5, "rollout/reward_mean": 0.1}),
    (2, {"train/loss": 0.25, "rollout/reward_mean": 0.3}),
    # After the step that it is of, and of an earlier one than the last that was logged.
    (1, {"eval/pass@1": 0.75}),
]
EXPECTED = {
    "eval/pass@1": {0: 0.25, 1: 0.75},
    "train/loss": {1: 0.5, 2: 0.25},
    "rollout/reward_mean": {1: 0.1, 2: 0.3},
}


def log(run_dir: Path, **logger: Any) -> None:
    """Logs all entries to one tracker, which must not fail."""
    run_dir.mkdir()
    config = RunConfig.model_validate(with_values({"logger": logger}))
    group = make_loggers(config, run_dir)
    for step, values in ENTRIES:
        group.log(step, values)
    group.close(succeeded=True, patience_s=240)
    [summary] = group.summary().values()
    assert summary == {"logged": len(ENTRIES), "failed": 0, "error": None}


def is_close(found: dict[int, float], expected: dict[int, float]) -> bool:
    """TensorBoard keeps float32."""
    same = found.keys() == expected.keys()
    return same and all(math.isclose(found[s], expected[s], rel_tol=1e-6) for s in expected)


def test_tensorboard_reads_what_was_logged(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the extra `tensorboard` is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    log(tmp_path / "run", to=["tensorboard"])
    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert set(events.Tags()["tensors"]) == set(EXPECTED)
    for name, expected in EXPECTED.items():
        found = {e.step: float(make_ndarray(e.tensor_proto)) for e in events.Tensors(name)}
        assert is_close(found, expected)


def test_wandb_offline_keeps_what_was_logged(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra `wandb` is not installed")
    log(tmp_path / "run", to=["wandb"], wandb={"mode": "offline"})
    [file] = (tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")
    # A process of the package's own writes the file, and may still be at it when a run is finished.
    until_s = time.monotonic() + patient(60)
    while len(rows := wandb_history(file)) < len(ENTRIES) and time.monotonic() < until_s:
        time.sleep(0.05)
    found: dict[str, dict[int, float]] = {}
    for row in rows:
        for name, value in row.items():
            if name in EXPECTED:
                found.setdefault(name, {})[int(row["step"])] = value
    assert found == EXPECTED


def wandb_history(file: Path) -> list[dict[str, Any]]:
    from wandb.proto import wandb_internal_pb2

    rows = []
    for data in log_records(file.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.WhichOneof("record_type") == "history":
            items = record.history.item
            rows.append(
                {(i.key or "/".join(i.nested_key)): json.loads(i.value_json) for i in items}
            )
    return rows


def log_records(data: bytes) -> Iterator[bytes]:
    """The records of a LevelDB log, after the seven bytes that wandb puts before it.

    A block has 32 KiB; a record's header is checksum, length, and whether it is whole (1) or the
    first, a middle or the last part (2, 3, 4).
    """
    place, parts = 7, b""
    while place + 7 <= len(data):
        left_in_block = 32768 - place % 32768
        if left_in_block < 7:
            place += left_in_block
            continue
        _, length, kind = struct.unpack_from("<IHB", data, place)
        parts += data[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


def test_mlflow_reads_what_was_logged(tmp_path: Path) -> None:
    mlflow = pytest.importorskip("mlflow", reason="the extra `mlflow` is not installed")
    run_dir = tmp_path / "run"
    log(run_dir, to=["mlflow"], project="tried")
    client = mlflow.MlflowClient(tracking_uri=f"sqlite:///{run_dir / 'mlflow.db'}")
    [run] = client.search_runs([client.get_experiment_by_name("tried").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "run"
    assert run.data.params["algorithm.group_size"] == "4"
    for name, expected in EXPECTED.items():
        history = client.get_metric_history(run.info.run_id, name.replace("@", "_at_"))
        assert {metric.step: metric.value for metric in history} == expected


def test_trackio_keeps_what_was_logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Read when the package is imported, which no test before this one does.
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip("trackio", reason="the extra `trackio` is not installed")
    log(tmp_path / "run", to=["trackio"], project="tried")
    with sqlite3.connect(tmp_path / "trackio" / "tried.db") as database:
        rows = database.execute("select step, metrics from metrics").fetchall()
    found: dict[str, dict[int, float]] = {}
    for step, metrics in rows:
        for name, value in json.loads(metrics).items():
            if name in EXPECTED:
                found.setdefault(name, {})[step] = value
    assert found == EXPECTED


def test_a_configuration_becomes_flat_parameters() -> None:
    tree = {"a": {"b": 1, "c": {}}, "d": [1, 2]}
    assert dict(flat(tree)) == {"a.b": 1, "a.c": {}, "d": [1, 2]}
