"""``colocate export``: a checkpoint becomes a folder that transformers loads."""

from __future__ import annotations

import resource
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from colocate.config import EmbeddedModelConfig
from colocate.embedded.model import build_embedded_model
from tests.cli.trained_run import leave_run

Run = Callable[[Sequence[str]], Any]


@pytest.fixture
def run_dir(empty_folder: Path) -> Path:
    """With the trained model in ``trained`` beside it."""
    return leave_run(empty_folder)


def weights_of(folder: Path) -> dict[str, torch.Tensor]:
    state: dict[str, torch.Tensor] = AutoModelForCausalLM.from_pretrained(folder).state_dict()
    return state


@pytest.mark.parametrize("source", [".", "checkpoints/step_000007"], ids=["run", "checkpoint"])
def test_an_exported_model_is_the_trained_one_with_its_tokenizer(
    colocate: Run, run_dir: Path, empty_folder: Path, source: str
) -> None:
    outcome = colocate(["export", str(run_dir / source), "out"])
    assert outcome.status == 0
    assert "step_000007" in outcome.out
    out = empty_folder / "out"
    exported, trained = weights_of(out), weights_of(empty_folder / "trained")
    assert exported.keys() == trained.keys()
    assert all(torch.equal(exported[name], trained[name]) for name in trained)
    tokens = AutoTokenizer.from_pretrained(out)("7-3").input_ids
    assert tokens == AutoTokenizer.from_pretrained(run_dir / "model")("7-3").input_ids
    card = (out / "README.md").read_text()
    assert "| last step | 0.750 |" in card
    assert "after 7 training steps" in card
    assert "dtype: float32" in card
    assert sorted(path.name for path in empty_folder.iterdir()) == ["out", "run", "trained"]


def test_a_folder_that_cannot_be_made_is_named_and_nothing_is_left(
    colocate: Run, run_dir: Path, empty_folder: Path
) -> None:
    (empty_folder / "file").write_text("in the way")
    before = sorted(empty_folder.iterdir())
    outcome = colocate(["export", str(run_dir), "file/out"])
    assert outcome.status == 1
    assert "file/out cannot be written" in outcome.err
    assert "Traceback" not in outcome.err
    assert sorted(empty_folder.iterdir()) == before


def test_a_full_disk_is_named_and_nothing_is_left(
    colocate: Run, run_dir: Path, empty_folder: Path
) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal_before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))
    try:
        outcome = colocate(["export", str(run_dir), "out"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, signal_before)
    assert outcome.status == 1
    assert "out cannot be written" in outcome.err
    assert sorted(path.name for path in empty_folder.iterdir()) == ["run", "trained"]


def test_weights_are_written_in_the_type_that_is_asked_for(
    colocate: Run, run_dir: Path, empty_folder: Path
) -> None:
    assert colocate(["export", str(run_dir), "out", "--dtype=bfloat16"]).status == 0
    exported, trained = weights_of(empty_folder / "out"), weights_of(empty_folder / "trained")
    assert {value.dtype for value in exported.values()} == {torch.bfloat16}
    assert all(torch.equal(exported[name], trained[name].bfloat16()) for name in trained)


def drop_the_checkpoint(run: Path) -> None:
    (run / "checkpoints" / "step_000007" / "state.json").unlink()
    (run / "checkpoints" / "step_000007").rename(run / "elsewhere")


def tear_the_state(run: Path) -> None:
    (run / "checkpoints" / "step_000007" / "state.json").write_text('{"sche')


def drop_the_first_model(run: Path) -> None:
    (run / "model" / "config.json").unlink()


def change_the_first_model(run: Path) -> None:
    build_embedded_model(
        run / "model", EmbeddedModelConfig(num_layers=1), seed=1, dtype="float32", max_model_len=64
    )


def take_the_place(run: Path) -> None:
    (run.parent / "out").mkdir()
    (run.parent / "out" / "precious").touch()


@pytest.mark.parametrize(
    ("prepare", "extra", "named"),
    [
        (drop_the_checkpoint, [], "neither a checkpoint nor a run's folder"),
        (tear_the_state, [], "cannot be read"),
        (drop_the_first_model, [], "--base"),
        (lambda run: None, ["--base=nowhere/at-all"], "nowhere/at-all, cannot be read"),
        (change_the_first_model, [], "model.layers.1."),
        (take_the_place, [], "out exists already"),
    ],
    ids=["no checkpoint", "torn state", "no base", "unknown base", "another base", "no room"],
)
def test_what_cannot_be_exported_is_refused_and_nothing_is_written(
    colocate: Run,
    run_dir: Path,
    empty_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    prepare: Callable[[Path], None],
    extra: list[str],
    named: str,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    prepare(run_dir)
    before = sorted(empty_folder.rglob("*"))
    outcome = colocate(["export", str(run_dir), "out", *extra])
    assert outcome.status == 2
    assert named in " ".join(outcome.err.split())
    assert "Traceback" not in outcome.err
    assert sorted(empty_folder.rglob("*")) == before
