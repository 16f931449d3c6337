"""Every shipped experiment takes two training steps for real."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engine.test_whole_runs import check_replay, summary_of

pytestmark = [pytest.mark.engine, pytest.mark.nightly, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
OF_SMOLLM2 = ("python_tool", "smollm2_arithmetic", "terminal")
EXPERIMENTS = sorted(
    path.stem
    for path in (ROOT / "conf" / "experiment").glob("*.yaml")
    if path.stem not in (*OF_SMOLLM2, "cluster_1024")
)


def run(command: str, run_dir: Path, *overrides: str) -> None:
    arguments = [sys.executable, "-m", "colocate.cli.main", command, *overrides]
    arguments += ["steps=2", f"hydra.run.dir={run_dir}"]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    summary = summary_of(run_dir)
    assert summary["status"] == "completed"
    assert summary["steps"] == 2


@pytest.fixture(scope="session")
def smollm2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real model's folder: the one that is there, or one made for these tests."""
    folder = ROOT / "models" / "smollm2"
    if not (folder / "config.json").exists():
        folder = tmp_path_factory.mktemp("models") / "smollm2"
        command = [sys.executable, str(ROOT / "tools" / "get_smollm2.py"), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode == 2:
            pytest.skip(done.stderr.strip())
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_two_steps_of_an_experiment_with_the_embedded_model(name: str, tmp_path: Path) -> None:
    run("train", tmp_path / "run", f"+experiment={name}")
    assert "every invariant holds" in check_replay(tmp_path / "run")


@pytest.mark.parametrize("name", OF_SMOLLM2)
def test_two_steps_of_an_experiment_with_a_pretrained_model(
    name: str, smollm2: Path, tmp_path: Path
) -> None:
    if name == "smollm2_arithmetic" and importlib.util.find_spec("reasoning_gym") is None:
        pytest.skip("it needs the extra reasoning-gym")
    run("train", tmp_path / "run", f"+experiment={name}", f"model.path={smollm2}")
    assert summary_of(tmp_path / "run")["environment"]["steps"] > 0
    assert "every invariant holds" in check_replay(tmp_path / "run")


def test_two_steps_of_the_simulated_cluster(tmp_path: Path) -> None:
    run("simulate", tmp_path / "run", "+experiment=cluster_1024")
