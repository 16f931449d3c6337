"""What is said of trackers that cannot be used."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from colocate.preflight import logger
from tests.config.trees import fields_of, problem_of

NAMES = ("tensorboard", "wandb", "trackio", "mlflow")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logger, "is_installed", lambda name: True)


@pytest.mark.parametrize("name", NAMES)
def test_a_package_that_is_missing_is_named_with_what_installs_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logger, "is_installed", lambda asked: False)
    problem = problem_of({"logger": {"to": [name]}})
    assert problem.field == "logger.to"
    assert f"{name} is not" in problem.rule
    assert f"pip install 'colocate[{name}]'" in problem.remedy


def test_an_unknown_tracker_is_refused() -> None:
    assert fields_of({"logger": {"to": ["tensorbord"]}}) == {"logger.to.0"}


@pytest.mark.usefixtures("installed")
def test_one_that_is_named_twice_is_refused() -> None:
    problem = problem_of({"logger": {"to": ["tensorboard", "tensorboard"]}})
    assert "each tracker once" in problem.rule


@pytest.mark.usefixtures("installed")
def test_wandb_online_needs_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    online = {"logger": {"to": ["wandb"]}}
    problem = problem_of(online)
    assert problem.field == "logger.wandb.mode"
    assert "logger.wandb.mode=offline" in problem.remedy
    assert fields_of({"logger": {"to": ["wandb"], "wandb": {"mode": "offline"}}}) == set()
    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password secret\n")
    assert fields_of(online) == set()
    (tmp_path / "netrc").unlink()
    monkeypatch.setenv("WANDB_API_KEY", "secret")
    assert fields_of(online) == set()


def test_a_folder_is_no_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "left_by_a_run").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert importlib.util.find_spec("left_by_a_run") is not None
    assert not logger.is_installed("left_by_a_run")
    assert logger.is_installed("json")
