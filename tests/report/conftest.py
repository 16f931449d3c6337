"""A run's folder as a run leaves it, and snapshots to show."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from colocate.core.memory import MemoryLedger
from colocate.core.phases import SWAP, Phase
from colocate.core.types import MemorySample
from colocate.report.records import MetricsWriter, write_summary
from colocate.report.snapshot import RunSnapshot
from colocate.report.sweep_manifest import ManifestJob, SweepManifest
from colocate.report.trace import TraceWriter
from colocate.report.transcripts import write_transcripts
from tests.report.browser import Browser, find_chromium
from tests.report.folders import sample, write_job
from tests.sim.test_simulated_runs import BASE, simulate

NUM_STEPS = 12
NO_CHROMIUM = "no Chromium: install it (apt install chromium), or set COLOCATE_CHROMIUM to its path"

MISMATCH = {
    "mismatch_num_tokens": 345.0,
    "mismatch_mean_abs_logprob_diff": 1e-6,
    "mismatch_max_abs_logprob_diff": 1e-5,
    "mismatch_k3_kl": 0.0,
    "mismatch_ess": 1.0,
    "mismatch_ratio_min": 0.99999,
    "mismatch_ratio_max": 1.00001,
}
"""A step's, as far as pictures show it."""


@pytest.fixture
def make_snapshot() -> Callable[..., RunSnapshot]:
    def make(**changes: Any) -> RunSnapshot:
        fields: dict[str, Any] = {
            "phase": Phase.TRAINING,
            "elapsed_s": 134.0,
            "step": 37,
            "num_steps": 100,
            "num_swaps": 37,
            "reward": 0.634,
            "best_reward": 0.66,
            "recent_rewards": tuple(0.1 + 0.014 * step for step in range(38)),
            "trajectories": {"generating": 128, "environment": 96, "finished": 64, "leased": 320},
            "endings": {"trained": 11_840, "expired": 3, "failed": 0},
            "staleness": {0: 9_100, 1: 900},
            "max_staleness": 1,
            "tokens_generated": 123_456,
            "tokens_trained": 110_000,
            "tokens_carried": 4_200,
            "memory": MemorySample(
                used=800 * 2**20,
                total=900 * 2**20,
                tenants={"engine": 300 * 2**20, "trainer": 500 * 2**20},
            ),
            "eta_s": 70.0,
        }
        return RunSnapshot(**{**fields, **changes})

    return make


@pytest.fixture
def summary() -> dict[str, Any]:
    phases = [Phase.STARTING, Phase.ROLLOUT, *SWAP, Phase.CLOSING]
    return {
        "schema": 1,
        "status": "completed",
        "error": None,
        "steps": NUM_STEPS,
        "swaps": NUM_STEPS,
        "wall_s": 93.4,
        "phase_s": {str(phase): 1.0 + index for index, phase in enumerate(phases)},
        "trajectories": {
            "admitted": 420,
            "trained": 384,
            "expired": 5,
            "filtered": 0,
            "masked": 0,
            "failed": 0,
            "cancelled": 0,
            "resident": 31,
            "replayed": 0,
        },
        "tokens": {
            "generated": 5000,
            "trained": 4600,
            "carried": 321,
            "reprefilled": 90,
            "discarded": 12,
        },
        "staleness": {
            "bound": 2,
            "max_trained_lag": 1,
            "mean_trained_lag": 0.1,
            "histogram": {"0": 4140, "1": 460},
        },
        "replay": {"max_lag": None, "mean_lag": None},
        "partials": {"carried": 44, "max_crossings": 1, "max_spans": 2},
        "environment": {"steps": 1300, "busy_s": 80.0, "hidden_s": 20.0, "failures": 0},
        "reward": {"first": 0.07, "last": 0.55, "best": 0.61},
        "memory": {
            "provider": "psutil",
            "peak": 820 * 2**20,
            "awake": 600 * 2**20,
            "asleep": 270 * 2**20,
            "trainer_peak": 430 * 2**20,
            "ledger": MemoryLedger().table(),
        },
        "warnings": [],
        "mismatch": {
            "mean_abs_logprob_diff": 1e-6,
            "max_abs_logprob_diff": 1e-5,
            "k3_kl": 0.0,
            "ess": 1.0,
            "ratio_mean": 1.0,
            "ratio_min": 0.99999,
            "ratio_max": 1.00001,
            "trainer_perplexity": 3.25004,
            "engine_perplexity": 3.25001,
            "num_tokens": 4140,
            "num_steps": 12,
            "warn_above": 1e-3,
        },
        "versions": {"trainer": NUM_STEPS, "engine": NUM_STEPS},
    }


@pytest.fixture
def run_dir(tmp_path: Path, summary: dict[str, Any]) -> Path:
    write_summary(tmp_path / "summary.json", summary)
    metrics = MetricsWriter(tmp_path / "metrics.jsonl")
    time_s = 0.0
    with TraceWriter(tmp_path / "trace.json") as trace:
        for step in range(NUM_STEPS):
            for phase in (Phase.ROLLOUT, *SWAP):
                trace.phase(phase, time_s, time_s + 0.5)
                trace.memory(time_s, MemorySample(used=5, total=9, tenants={"engine": 3}))
                time_s += 0.5
            metrics.write(
                {
                    "step": step + 1,
                    "reward_mean": 0.05 * step,
                    "lag_mean": 0.1,
                    "lag_max": 1.0,
                    **(MISMATCH if step else {}),
                }
            )
    metrics.close()
    return tmp_path


@pytest.fixture
def whole_run(run_dir: Path, summary: dict[str, Any]) -> Path:
    """As a run leaves its folder: journal, configuration and transcripts too."""
    simulate(run_dir, dataclasses.replace(BASE, steps=5))
    summary["software"] = {"colocate": "0.0", "torch": "2.13.0"}
    (run_dir / "summary.json").write_text(json.dumps(summary))
    hydra = run_dir / ".hydra"
    hydra.mkdir()
    (hydra / "config.yaml").write_text("steps: 12\nscheduler: {policy: timed}\n")
    (hydra / "overrides.yaml").write_text("- +experiment=quickstart\n- steps=12\n")
    for step in (1, 6, 12):
        write_transcripts(run_dir / "trajectories", step, [sample(step)])
    return run_dir


@pytest.fixture
def sweep(tmp_path: Path, summary: dict[str, Any]) -> Path:
    """Two settings by two seeds; one failed, one was killed, one never began, one is superseded."""
    (tmp_path / "multirun.yaml").write_text("{}")
    for name, bound, seed in (("0", 1, 0), ("1", 1, 1), ("2", 3, 0), ("3", 3, 1)):
        write_job(tmp_path / name, summary, bound, seed)
    write_job(tmp_path / "superseded" / "1-0", summary, 1, 1)
    failed = {**summary, "status": "failed", "error": "rank 0 ended | badly"}
    (tmp_path / "3" / "summary.json").write_text(json.dumps(failed))
    write_job(tmp_path / "4", summary, 3, 2)
    (tmp_path / "4" / "summary.json").unlink()
    labels = [f"job {number}" for number in range(6)]
    manifest = [ManifestJob(folder=str(i), label=label) for i, label in enumerate(labels)]
    SweepManifest(tmp_path, manifest).write()
    return tmp_path


@pytest.fixture
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A page in Chromium; its profile lies in no folder that a test looks at."""
    chromium = find_chromium()
    if chromium is None:
        pytest.skip(NO_CHROMIUM)
    with Browser(chromium, tmp_path_factory.mktemp("profile"), patience_s=300.0) as browser:
        yield browser
