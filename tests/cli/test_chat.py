"""``colocate chat``: a checkpoint answers, and plays the run's own environment."""

from __future__ import annotations

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.cli.trained_run import VERSION, add_checkpoint, configure, greedy, leave_run

Run = Callable[[Sequence[str]], Any]

PROMPT = "0-9?\n"


@pytest.fixture
def run_dir(empty_folder: Path) -> Path:
    """With the quickstart's whole configuration."""
    run = leave_run(empty_folder)
    configure(run)
    return run


def test_a_prompt_is_answered_by_the_trained_weights(
    colocate: Run, run_dir: Path, empty_folder: Path
) -> None:
    outcome = colocate(["chat", "run", f"--prompt={PROMPT}", "--temperature=0"])
    assert outcome.status == 0, outcome.err
    right = greedy(empty_folder / "trained", PROMPT, 3)
    assert outcome.out == right + "\n"
    assert right != greedy(run_dir / "model", PROMPT, 3)
    assert f"the weights of step {VERSION}, by transformers on cpu" in outcome.err
    assert sorted(path.name for path in empty_folder.iterdir()) == ["run", "trained"]


def test_the_checkpoint_of_a_step_can_be_asked_for(
    colocate: Run, run_dir: Path, empty_folder: Path
) -> None:
    add_checkpoint(run_dir, run_dir / "model", 3)
    ask = ["chat", "run", f"--prompt={PROMPT}", "--temperature=0", "--max-new-tokens=8"]
    earlier = colocate([*ask, "--step=3"])
    assert earlier.out == greedy(run_dir / "model", PROMPT, 8) + "\n"
    missing = colocate([*ask, "--step=4"])
    assert missing.status == 2
    assert "--step 4: run has no checkpoint of it; it has those of 3, 7" in missing.err


def test_an_episode_of_the_runs_environment_is_played_and_shown(
    colocate: Run, run_dir: Path
) -> None:
    outcome = colocate(["chat", "run", "--env", "--seed=5"])
    assert outcome.status == 0, outcome.err
    lines = outcome.out.splitlines()
    assert lines[0] == "     prompt  0-9?"
    assert [line.split()[0] for line in lines[1:3]] == ["agent", "environment"]
    assert lines[-1].startswith("Reward ")
    assert colocate(["chat", "run", "--env", "--seed=5"]).out == outcome.out


def test_reward_functions_of_the_run_are_told_apart(
    colocate: Run, run_dir: Path, empty_folder: Path
) -> None:
    (empty_folder / "my_scores.py").write_text(
        "async def spoken(episode):\n    return float(len(episode.turns))\n"
    )
    configure(run_dir, "reward.functions=[{function:'my_scores:spoken',weight:0.5}]")
    outcome = colocate(["chat", "run", "--env"])
    assert outcome.status == 0, outcome.err
    reward, part = outcome.out.splitlines()[-2:]
    assert part.startswith("  spoken: ")
    assert float(reward.split()[1].rstrip(";")) == 0.5 * float(part.split()[1])


def test_lines_are_answered_until_the_input_ends(
    colocate: Run, run_dir: Path, empty_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = "0-9?\n/new\n0-9?\n" + "0-9?\n" * 20
    monkeypatch.setattr("sys.stdin", io.StringIO(said))
    outcome = colocate(["chat", "run", "--temperature=0"])
    assert outcome.status == 0, outcome.err
    right = greedy(empty_folder / "trained", PROMPT, 3)
    assert outcome.out.startswith((right + "\n") * 2)
    assert "plain text" in outcome.err
    # The embedded model has room for 64 tokens.
    assert "leave no room for an answer within inference.max_model_len = 64" in outcome.err


def no_configuration(run: Path) -> None:
    (run / ".hydra" / "config.yaml").unlink()


def another_configuration(run: Path) -> None:
    (run / ".hydra" / "config.yaml").write_text("steps: many\n")


def no_checkpoint(run: Path) -> None:
    (run / "checkpoints").rename(run / "elsewhere")


def no_environment(run: Path) -> None:
    configure(run, "environment.factory=nowhere.at_all:Task")


@pytest.mark.parametrize(
    ("spoil", "more", "told"),
    [
        (no_configuration, ["--prompt=1"], "run is no run's folder: it has no .hydra/config.yaml"),
        (another_configuration, ["--prompt=1"], "cannot be used"),
        (no_checkpoint, ["--prompt=1"], "run has no checkpoint"),
        (no_environment, ["--env"], "importing nowhere.at_all raised"),
        (lambda run: None, ["--prompt="], "an empty prompt"),
        (lambda run: None, ["--prompt=1", "--env"], "not allowed with"),
        (lambda run: None, ["--temperature=-1"], "takes a number from 0 (greedy) on"),
        (lambda run: None, ["--prompt=1", "--base=nowhere/at-all"], "nowhere/at-all, cannot be"),
    ],
)
def test_what_cannot_be_done_is_told_in_one_message(
    colocate: Run,
    run_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    spoil: Callable[[Path], None],
    more: list[str],
    told: str,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    spoil(run_dir)
    outcome = colocate(["chat", "run", *more])
    assert outcome.status == 2
    assert told in " ".join(outcome.err.split())
    assert "Traceback" not in outcome.err
    assert outcome.out == ""
