"""``colocate simulate`` from the command line to the run's folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from colocate.cli.simulate import inherited_overrides
from colocate.problems import ConfigurationError

SMALL = ["steps=3", "algorithm.group_size=4", "algorithm.groups_per_step=4", "logger.display=off"]


def test_a_simulation_leaves_a_runs_folder_that_replays(
    colocate: Callable[[Sequence[str]], Any], empty_folder: Path
) -> None:
    assert colocate(["simulate", *SMALL, "hydra.run.dir=run"]).status == 0
    run_dir = empty_folder / "run"
    names = {path.name for path in run_dir.iterdir()}
    assert names >= {".hydra", "events.jsonl", "metrics.jsonl", "trace.json", "summary.json"}
    summary = json.loads((run_dir / "summary.json").read_text())
    assert summary["status"] == "completed"
    assert summary["steps"] == len((run_dir / "metrics.jsonl").read_text().splitlines()) == 3
    assert summary["simulation"]["trace_fraction"] == 1.0
    outcome = colocate(["replay", "run"])
    assert outcome.status == 0
    assert "every invariant holds" in outcome.out


def test_a_sampled_journal_keeps_whole_groups_and_says_that_it_is_sampled(
    colocate: Callable[[Sequence[str]], Any], empty_folder: Path
) -> None:
    sampled = ["sim.trace_fraction=0.3", "algorithm.groups_per_step=8", "hydra.run.dir=run"]
    assert colocate(["simulate", *SMALL, *sampled]).status == 0
    lines = [json.loads(t) for t in (empty_folder / "run/events.jsonl").read_text().splitlines()]
    started: dict[int, int] = {}
    seen: set[int] = set()
    for line in lines:
        for name, action in line["actions"]:
            if name == "StartTrajectory":
                started[action["group"]] = started.get(action["group"], 0) + 1
                seen.add(action["trajectory"])
        if "trajectory" in line["event"]:
            # Another's event is there where something that is kept follows from it.
            assert line["event"]["trajectory"] in seen or line["actions"]
    summary = json.loads((empty_folder / "run/summary.json").read_text())
    assert 0 < len(seen) < summary["trajectories"]["admitted"]
    assert set(started.values()) == {4}
    outcome = colocate(["replay", "run"])
    assert outcome.status == 2
    assert "sim.trace_fraction" in outcome.err


@pytest.mark.parametrize(
    ("override", "field"),
    [
        ("sim.engine.pass_s=0", "sim.engine.pass_s"),
        ("sim.environment.step.kind=empirical", "sim.environment.step.values"),
        ("sim.episode.turns.values=[1,2]", "sim.episode.turns.values"),
        ("sim.from_run=nowhere", "sim.from_run"),
        ("sim.engine.kv_token_bytes=100000000", "sim.engine.kv_token_bytes"),
        ("sim.memory.device_bytes=1000", "sim.memory.device_bytes"),
        ("sim.trace_fraction=2", "sim.trace_fraction"),
        ("sim.engin.pass_s=1", "sim.engin.pass_s"),
    ],
)
def test_a_wrong_world_is_refused_with_field_rule_value_and_remedy(
    colocate: Callable[[Sequence[str]], Any], empty_folder: Path, override: str, field: str
) -> None:
    extra = ["sim.memory.weights_bytes=2000"] if "device_bytes" in override else []
    outcome = colocate(["simulate", *SMALL, override, *extra, "hydra.run.dir=run"])
    assert outcome.status == 2
    assert field in outcome.err
    assert "rule" in outcome.err
    assert "remedy" in outcome.err
    assert not (empty_folder / "run").exists()


def test_a_run_lends_its_overrides_and_what_is_given_wins(tmp_path: Path) -> None:
    folder = tmp_path / ".hydra"
    folder.mkdir()
    (folder / "overrides.yaml").write_text("- +experiment=quickstart\n- steps=12\n- seed=3\n")
    given = [f"sim.from_run={tmp_path}", "steps=40"]
    assert inherited_overrides(given) == ["+experiment=quickstart", "seed=3"]
    assert inherited_overrides(["steps=40"]) == []
    with pytest.raises(ConfigurationError, match="has no effect beside"):
        inherited_overrides([*given, "sim.trainer.step_s=3"])
