"""The command itself, with real vLLM and real DeepSpeed: to its end, stopped, killed, resumed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.patience import patient
from tests.processes import running

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

SMALL = (
    "+experiment=quickstart",
    "algorithm.group_size=8",
    "algorithm.groups_per_step=4",
    "inference.kv_cache_memory_bytes=67108864",
    "memory.budget_bytes=null",
    "inference.sleep=2",
    "environment.latency.median_s=0.3",
    "supervision.grace_s=30",
)


def command(run_dir: Path, *overrides: str) -> list[str]:
    run = [sys.executable, "-m", "colocate.cli.main", "train", *SMALL]
    return [*run, f"hydra.run.dir={run_dir}", *overrides]


def start(run_dir: Path, *overrides: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(run_dir, *overrides),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def descendants(run: subprocess.Popen[str]) -> list[psutil.Process]:
    return psutil.Process(run.pid).children(recursive=True)


def wait_until(run: subprocess.Popen[str], what: Any, deadline_s: float = 240.0) -> None:
    due = time.monotonic() + patient(deadline_s)
    while not what():
        assert run.poll() is None, f"it ended with {run.returncode}: {run.communicate()[0]}"
        assert time.monotonic() < due, "it did not come so far in time"
        time.sleep(0.2)


def steps_done(run_dir: Path) -> int:
    metrics = run_dir / "metrics.jsonl"
    return len(metrics.read_text().splitlines()) if metrics.exists() else 0


def check_all_gone(processes: list[psutil.Process]) -> None:
    assert running(processes, patient(10)) == []


def summary_of(run_dir: Path) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary


def check_replay(run_dir: Path) -> str:
    replay = [sys.executable, "-m", "colocate.cli.main", "replay", str(run_dir)]
    done = subprocess.run(replay, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_a_run_swaps_for_real_carries_partials_and_balances_its_books(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    done = subprocess.run(
        command(run_dir, "steps=6"), capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    summary = summary_of(run_dir)
    assert summary["status"] == "completed"
    assert summary["swaps"] == summary["steps"] == 6
    assert summary["versions"] == {"trainer": 6, "engine": 6}
    assert summary["trajectories"]["trained"] == 6 * 32
    assert summary["partials"]["carried"] > 0
    assert summary["partials"]["max_spans"] >= 2
    assert summary["environment"]["hidden_s"] > 0
    assert summary["staleness"]["max_trained_lag"] <= summary["staleness"]["bound"]
    assert summary["memory"]["asleep"] < summary["memory"]["awake"]
    # Same weights, two engines: what is trained is what was sampled, position by position.
    assert summary["mismatch"]["max_abs_logprob_diff"] < 1e-3
    assert "every invariant holds" in check_replay(run_dir)
    for name in (".hydra/config.yaml", "trace.json", "plots/reward.png", "plots/phases.png"):
        assert (run_dir / name).stat().st_size > 0
    assert list((run_dir / "checkpoints").iterdir())
    assert list((run_dir / "trajectories").glob("*.parquet"))
    assert not [name for name in os.listdir("/dev/shm") if summary["run_id"] in name]


def test_a_stopped_run_leaves_a_checkpoint_that_a_resumed_one_goes_on_from(tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run = start(run_dir, "steps=100")
    wait_until(run, lambda: steps_done(run_dir) >= 2)
    processes = descendants(run)
    run.send_signal(signal.SIGTERM)
    output, _ = run.communicate(timeout=patient(60))
    assert run.returncode == 128 + signal.SIGTERM, output
    check_all_gone(processes)
    stopped = summary_of(run_dir)
    assert stopped["status"] == "stopped"
    version = stopped["versions"]["trainer"]
    assert [p.name for p in (run_dir / "checkpoints").iterdir()] == [f"step_{version:06d}"]
    check_replay(run_dir)

    again = subprocess.run(
        command(run_dir, f"steps={version + 2}", "resume=auto"),
        capture_output=True,
        text=True,
        check=False,
    )
    assert again.returncode == 0, again.stdout + again.stderr
    resumed = summary_of(run_dir)
    assert resumed["versions"] == {"trainer": version + 2, "engine": version + 2}
    assert resumed["steps"] == 2
    assert resumed["mismatch"]["max_abs_logprob_diff"] < 1e-3
    assert steps_done(run_dir) == version + 2
    taken_up = resumed["resumed"]
    found = taken_up["finished"] + taken_up["partials"] + taken_up["begun"]
    assert found == stopped["trajectories"]["resident"] > 0
    assert taken_up["tokens"] > 0
    assert taken_up["restarted"] == taken_up["given_up"] == 0  # the embedded task is replayed
    assert resumed["staleness"]["max_trained_lag"] <= resumed["staleness"]["bound"]
    assert "bit for bit" in check_replay(run_dir)

    export = [sys.executable, "-m", "colocate.cli.main", "export", str(run_dir)]
    done = subprocess.run(
        [*export, str(tmp_path / "model")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    trained, first = (
        AutoModelForCausalLM.from_pretrained(folder).state_dict()
        for folder in (tmp_path / "model", run_dir / "model")
    )
    assert trained.keys() == first.keys()
    assert all(value.isfinite().all() for value in trained.values())
    name = "model.layers.0.mlp.up_proj.weight"
    assert not torch.equal(trained[name], first[name])


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_no_process_outlives_a_driver_that_is_gone(tmp_path: Path, number: signal.Signals) -> None:
    run_dir = tmp_path / "run"
    run = start(run_dir, "steps=100")
    if number is signal.SIGKILL:
        wait_until(run, lambda: steps_done(run_dir) >= 1)
    else:
        # While vLLM is still on its way up, with its processes half there.
        wait_until(run, (run_dir / "logs" / "vllm.log").exists)
    processes = descendants(run)
    assert processes
    run.send_signal(number)
    run.communicate(timeout=patient(90))
    assert run.returncode == (-number if number is signal.SIGKILL else 128 + number)
    check_all_gone(processes)
